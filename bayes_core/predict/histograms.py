"""Binned counts of how certain a model is and of the distribution of its weights: what a report draws.

Counts add up over clients, and they are all that leaves a site of either: no example, no weight.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayes_core.families import Family, wide
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.uncertainty import entropy

ENTROPY_BINS = 20  # from 0, certain, to 1, a uniform guess
SCORE_BINS = 50  # of a class's probability, from 0 to 1
SURE_PER_DECADE = 8  # bins of 1 − confidence, by its logarithm: the surest answers are told apart, too …
SURE_BINS = 5 * SURE_PER_DECADE  # … down to 1e-5
VALUE_BINS = 10  # of predicted numbers, half a standard deviation of the targets wide, around their mean
LAMBDA_BINS = 40  # from 0 to 1
SIGMA_PER_DECADE = 400  # bins 0.6 % wide: after training most σ lie within a few per cent of each other
SIGMA_FROM, SIGMA_TO = -4, 1  # log10 of σ; what lies beyond counts in the outermost bins
SIGMA_BINS = SIGMA_PER_DECADE * (SIGMA_TO - SIGMA_FROM)


def relative_entropy(probabilities: Tensor) -> Tensor:
    """The entropy of class probabilities (n, classes) as a share of that of a uniform guess, shape (n,)."""
    p = probabilities.cpu().double()
    return entropy(p) / math.log(max(p.shape[-1], 2))


def entropy_counts(probabilities: Tensor) -> list[int]:
    """How many examples have which relative entropy."""
    return _count(relative_entropy(probabilities) * ENTROPY_BINS, ENTROPY_BINS)


def confusion_counts(probabilities: Tensor, y: Tensor) -> list[int]:
    """How many examples of each class were taken for which: true × predicted, row by row."""
    classes = probabilities.shape[-1]
    return _count(y.cpu() * classes + probabilities.cpu().argmax(-1), classes**2)


def score_counts(probabilities: Tensor, y: Tensor) -> list[int]:
    """How probable each class was, of examples that are not of it and of those that are: class × 2 × bin."""
    p, classes = probabilities.cpu().double(), probabilities.shape[-1]
    bins = (p * SCORE_BINS).long().clamp_(0, SCORE_BINS - 1)
    true = torch.arange(classes)[None] == y.cpu()[:, None]
    places = (torch.arange(classes)[None] * 2 + true) * SCORE_BINS + bins
    return _count(places.flatten(), 2 * classes * SCORE_BINS)


def label_counts(probabilities: Tensor, y: Tensor) -> tuple[list[int], list[int]]:
    """Of several labels an example: as `confusion_counts` and `score_counts`, of each label for itself.

    `probabilities` (n · labels, 2) are those of not there and there, `y` (n, labels) says which are. The counts:
    label × true × predicted; label × 2 × bin of the probability that it is there.
    """
    there, labels = probabilities.cpu().double()[:, 1].view(y.shape), y.shape[1]
    place, true = torch.arange(labels)[None], y.cpu().long()
    bins = (there * SCORE_BINS).long().clamp_(0, SCORE_BINS - 1)
    said = probabilities.cpu().argmax(-1).view(y.shape)
    confusion = _count((4 * place + 2 * true + said).flatten(), 4 * labels)
    return confusion, _count(((2 * place + true) * SCORE_BINS + bins).flatten(), 2 * labels * SCORE_BINS)


def answer_counts(probabilities: Tensor, y: Tensor) -> list[int]:
    """How sure the wrong answers are, and how sure the right ones, from the least sure on: 2 × bin."""
    confidence, predicted = probabilities.cpu().double().max(-1)
    bins = (confidence.neg().add(1).clamp_min(1e-300).log10() * -SURE_PER_DECADE).clamp_(0, SURE_BINS - 1)
    return _count((predicted == y.cpu()) * SURE_BINS + bins.long(), 2 * SURE_BINS)


def value_counts(forecast: Forecast, y: Tensor, scale: tuple[float, float]) -> list[float]:
    """By predicted number: how many there are, how many lie in their 90 % intervals, and how wide these are in sum.

    3 × bin; `scale`, mean and deviation of the targets, says where the bins lie.
    """
    low, high = (bound.cpu() for bound in forecast.interval())
    y = wide(y).cpu()
    places = (forecast.mean.cpu() - scale[0]) / scale[1] * 2 + VALUE_BINS / 2
    bins = places.floor().long().clamp_(0, VALUE_BINS - 1)
    columns = (torch.ones_like(low), ((low <= y) & (y <= high)).double(), high - low)
    zeros = torch.zeros(VALUE_BINS, dtype=torch.float64)
    return torch.cat([zeros.index_add(0, bins, column) for column in columns]).tolist()


def weight_counts(family: Family, v: Tensor, sizes: Sequence[int]) -> dict[str, list[int] | list[float]]:
    """Of a constrained distribution: counts of σ, and for sparse ones of λ with the non-zero ratio of each layer.

    `sizes` are the layers' numbers of weights, in the order in which they lie in `v`.
    """
    v = v.cpu()
    counts: dict[str, list[int] | list[float]] = {}
    if family.uncertain:
        counts["sigma"] = sigma_counts(family.sigma(v.double()))
    if family.gated:
        on = family.inclusion(v)
        counts["lambda"] = _count(on.double() * LAMBDA_BINS, LAMBDA_BINS)
        counts["nonzero"] = [float(layer.double().mean()) for layer in torch.split(on, list(sizes))]
    return counts


def sigma_counts(sigma: Tensor) -> list[int]:
    """How many weights have which σ, given in float64, in bins of equal width in log σ."""
    places = (sigma.log10() - SIGMA_FROM) * SIGMA_PER_DECADE
    return _count(places, SIGMA_BINS)


def sigma_edge(bin_number: int) -> float:
    """The σ at which a bin begins."""
    return float(10 ** (SIGMA_FROM + bin_number / SIGMA_PER_DECADE))


def _count(places: Tensor, bins: int) -> list[int]:
    counts: list[int] = torch.bincount(places.long().clamp_(0, bins - 1), minlength=bins).tolist()
    return counts
