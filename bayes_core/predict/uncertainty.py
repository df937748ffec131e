"""What a distribution over weights knows, and what it knows that it does not know.

The predictive's entropy has two parts: H[E p] = E H[p] + I. The first is what remains when the weights are known
(the data's own ambiguity), the second, the mutual information between label and weights, is how much the draws
disagree (what more data would settle).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayes_core.families import Family, wide
from bayes_core.predict.predictive import draws


@dataclass(frozen=True)
class Prediction:
    """Class probabilities of n examples, and the uncertainty of the Monte-Carlo predictive, in nats; all float64."""

    probabilities: Tensor  # (n, classes)
    entropy: Tensor  # (n,): expected entropy + mutual information
    mutual_information: Tensor  # (n,)

    @property
    def labels(self) -> Tensor:
        """The likeliest class of each example."""
        return self.probabilities.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """The likeliest class's probability."""
        return self.probabilities.amax(-1)

    @property
    def expected_entropy(self) -> Tensor:
        """What would remain if the weights were known."""
        return self.entropy - self.mutual_information


def predict(
    network: nn.Module,
    family: Family,
    v: Tensor,
    x: Tensor,
    samples: int,
    generator: torch.Generator,
    buffers: Mapping[str, Tensor] | None = None,
) -> Prediction:
    """The Monte-Carlo predictive of `samples` draws θ ~ v with its uncertainty."""
    return of_draws(draws(network, family, v, x, samples, generator, buffers))


def of_draws(found: Iterable[Tensor]) -> Prediction:
    """From class probabilities (n, classes) under each draw."""
    total, expected, count = torch.zeros(()), torch.zeros(()), 0
    for p in found:
        p = wide(p)
        total, expected, count = total + p, expected + entropy(p), count + 1
    p = total / count
    return Prediction(p, entropy(p), (entropy(p) - expected / count).clamp_min(0))  # below 0 is rounding


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ p log p over the last dimension, in nats, with 0·log 0 = 0."""
    return -torch.xlogy(probabilities, probabilities).sum(-1)


def auroc(known: Tensor, unknown: Tensor) -> float:
    """How well a score tells unknown examples from known ones: P(unknown's is higher) + ½·P(equal)."""
    from sklearn.metrics import roc_auc_score  # slow to import, and no client needs it

    scores = torch.cat([known, unknown])
    truth = torch.cat([torch.zeros(len(known)), torch.ones(len(unknown))])
    return float(roc_auc_score(truth.numpy(), scores.cpu().numpy()))
