"""The predictive of a regression: a mixture of Gaussians, one for each draw of the weights.

Its variance has two parts, as the entropy of classes has (uncertainty.py): the mean of the draws' noise variances,
which remains when the weights are known, and the variance of the draws' means, which more data would settle.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor, nn
from torch.special import ndtr

from bayes_core.families import Family, wide
from bayes_core.predict.predictive import draw_outputs

LEVEL = 0.9  # of the intervals that are reported


@dataclass(frozen=True)
class Forecast:
    """The predictive of n numbers; all float64."""

    means: Tensor  # (draws, n)
    noises: Tensor  # (draws, n): the standard deviation of each draw's noise

    @property
    def mean(self) -> Tensor:
        return self.means.mean(0)

    @property
    def noise(self) -> Tensor:
        """The part of the standard deviation that would remain if the weights were known."""
        return self.noises.square().mean(0).sqrt()

    @property
    def doubt(self) -> Tensor:
        """The part that comes from not knowing the weights: how much the draws disagree."""
        return self.means.var(0, correction=0).sqrt()

    @property
    def sd(self) -> Tensor:
        return (self.noise.square() + self.doubt.square()).sqrt()

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y ≤ y) under the mixture."""
        below: Tensor = ndtr((wide(y) - self.means) / self.noises)
        return below.mean(0)

    def log_density(self, y: Tensor) -> Tensor:
        parts = -((wide(y) - self.means) / self.noises).square() / 2 - self.noises.log()
        return parts.logsumexp(0) - math.log(len(self.means)) - math.log(2 * math.pi) / 2

    def interval(self, level: float = LEVEL) -> tuple[Tensor, Tensor]:
        """The bounds between which y lies with this probability, as much of the rest below as above."""
        if not 0 < level < 1:
            raise ValueError(f"An interval takes a probability between 0 and 1, not {level}.")
        return self._quantile((1 - level) / 2), self._quantile((1 + level) / 2)

    def _quantile(self, p: float) -> Tensor:
        """By bisection: the mixture's quantile lies between those of its parts."""
        parts = self.means + NormalDist().inv_cdf(p) * self.noises
        low, high = parts.amin(0), parts.amax(0)
        for _ in range(60):
            middle = (low + high) / 2
            below = self.cdf(middle) < p
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (low + high) / 2

    def unscaled(self, mean: float, deviation: float) -> "Forecast":
        """Of targets that were (y − mean) / deviation: in their own units."""
        return Forecast(self.means * deviation + mean, self.noises * deviation)


def forecast(
    network: nn.Module,
    family: Family,
    v: Tensor,
    x: Tensor,
    samples: int,
    generator: torch.Generator,
    buffers: Mapping[str, Tensor] | None = None,
) -> Forecast:
    """The Monte-Carlo predictive of `samples` draws θ ~ v, for a network with noise."""
    found = [wide(one) for one in draw_outputs(network, family, v, x, samples, generator, buffers)]
    return of_outputs(torch.stack(found))


def of_outputs(outputs: Tensor) -> Forecast:
    """From what the network says in each draw, shape (draws, n, 2)."""
    means, log_noises = wide(outputs).unbind(-1)
    return Forecast(means, log_noises.exp())
