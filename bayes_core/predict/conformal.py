"""Split conformal prediction: sets of classes and intervals of numbers that hold the truth with a promised probability.

From n examples that the model was not trained on, each with a score that says how badly the model fits it, comes the
⌈(n+1)·level⌉-th smallest score, q. A new example's answer is all that scores at most q. If it and the n are
exchangeable (drawn alike, in any order, and nothing in the model knows which is which), it holds the truth with a
probability of at least `level`, whatever the model, and of at most level + 1/(n+1) where scores have no ties. That is
on average over examples and over draws of the n; it is no promise for single classes or regions.

Of numbers it is a promise for each group of examples (Mondrian; Vovk et al. 2003): those of which the model says that
they are quiet, middling or noisy, by thirds of its predicted sd, as far as there are examples for so many. The cuts
between groups are themselves held-out examples, which then belong to no group. So the others between two cuts, and a
new example that falls there, are draws from one distribution (blocks of order statistics; Tukey 1947), and the rank
above is as exact within each group as it was for all. Few examples make a rough rank: no group's threshold is below the
one for all examples, which keeps the promise and takes the worst of the bad luck away, for somewhat wider intervals.

Scores: 1 − p of the true class (Sadinle, Lei, Wasserman 2019); |y − mean| / sd of a number, so that intervals are as
wide as the model thinks they must be (Lei et al. 2018). Different from them: a set always holds the likeliest class.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from bayes_core.families import wide
from bayes_core.predict.forecast import Forecast

MOST_GROUPS = 3  # of numbers: quiet, middling, noisy


@dataclass(frozen=True)
class Promise:
    """What conformal answers may score, and how often they then hold the truth."""

    level: float
    thresholds: tuple[float, ...]  # one for each group
    cuts: tuple[float, ...] = ()  # the predicted sd at which the next group begins; one fewer

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "Promise":
        """From what `numbers` gave."""
        groups = len(numbers) // 2
        if not groups or len(numbers) % 2:
            raise ValueError(f"a conformal promise is 2, 4, … numbers, not {len(numbers)}")
        level, *rest = map(float, numbers)
        return cls(level, tuple(rest[:groups]), tuple(rest[groups:]))

    @property
    def numbers(self) -> list[float]:
        """Level, thresholds, cuts: of one group level and threshold."""
        return [self.level, *self.thresholds, *self.cuts]

    def scaled(self, deviation: float) -> "Promise":
        """For forecasts in units that are so many times smaller."""
        return replace(self, cuts=tuple(cut * deviation for cut in self.cuts))

    def threshold(self, sd: Tensor) -> Tensor:
        """The score that an answer may have, for each example of these predicted standard deviations."""
        group = torch.bucketize(sd, torch.tensor(self.cuts, dtype=sd.dtype, device=sd.device))
        return torch.tensor(self.thresholds, dtype=sd.dtype, device=sd.device)[group]


def least(level: float) -> int:
    """How many examples it takes: with fewer, only all classes and all numbers would keep the promise."""
    n = max(math.ceil(level / (1 - level) - 1e-9), 1)
    return n if _rank(n, level) <= n else n + 1


def _rank(n: int, level: float) -> int:
    return math.ceil((n + 1) * level - 1e-9)


def quantile(scores: Tensor, level: float) -> float:
    """The ⌈(n+1)·level⌉-th smallest of n scores; infinite where there are fewer."""
    rank = _rank(len(scores), level)
    return float(wide(scores).sort().values[rank - 1]) if rank <= len(scores) else math.inf


def promised(scores: Tensor, level: float) -> Promise:
    """One threshold for all."""
    return Promise(level, (quantile(scores, level),))


def promised_by_group(scores: Tensor, sd: Tensor, level: float) -> Promise:
    """A threshold for each group by predicted sd: as many groups as have the examples they take, at most three.

    None is below the threshold for all.

    Where examples have the same sd as a cut, groups could not be told apart, and there is one.
    """
    n = len(scores)
    groups = min(MOST_GROUPS, (n + 1) // (least(level) + 1))
    order = wide(sd).argsort()
    at = [(n + 1) * group // groups - 1 for group in range(1, groups)]
    cuts = wide(sd)[order[torch.tensor(at, dtype=torch.long, device=sd.device)]]
    if groups < 2 or bool((wide(sd)[:, None] == cuts).sum(0).max() > 1):
        return promised(scores, level)
    ends = [-1, *at, n]
    least_of_all = quantile(scores, level)
    within = (order[low + 1 : high] for low, high in pairwise(ends))
    found = tuple(max(quantile(scores[group], level), least_of_all) for group in within)
    return Promise(level, found, tuple(cuts.tolist()))


def class_scores(probabilities: Tensor, y: Tensor) -> Tensor:
    """1 − p of the true classes, shape (n,)."""
    p = wide(probabilities)
    return 1 - p.gather(-1, y.to(p.device)[:, None])[:, 0]


def class_sets(probabilities: Tensor, promise: Promise) -> Tensor:
    """Which classes are in the sets of examples with these probabilities (n, classes): true or false, likewise."""
    p = wide(probabilities)
    within: Tensor = (1 - p <= promise.thresholds[0]) | (p == p.amax(-1, keepdim=True))
    return within


def number_scores(forecast: Forecast, y: Tensor) -> Tensor:
    """|y − mean| / sd, shape (n,)."""
    return (wide(y).to(forecast.mean.device) - forecast.mean).abs() / forecast.sd


def interval(forecast: Forecast, promise: Promise) -> tuple[Tensor, Tensor]:
    """mean ∓ threshold·sd."""
    half = promise.threshold(forecast.sd) * forecast.sd
    return forecast.mean - half, forecast.mean + half


def measured_sets(probabilities: Tensor, y: Tensor, promise: Promise) -> tuple[float, float]:
    """Of examples with known classes: the share whose sets hold them, and the mean size of the sets."""
    sets = class_sets(probabilities, promise)
    held = sets.gather(-1, y.to(sets.device)[:, None])
    return float(held.double().mean()), float(sets.double().sum(-1).mean())


def measured_intervals(forecast: Forecast, y: Tensor, promise: Promise) -> tuple[float, float]:
    """Of examples with known numbers: the share within their intervals, and the intervals' mean width."""
    low, high = interval(forecast, promise)
    y = wide(y).to(low.device)
    within: Tensor = torch.logical_and(low <= y, y <= high)
    return float(within.double().mean()), float((high - low).mean())
