"""Split conformal prediction: sets of classes and intervals of numbers that hold the truth with a promised probability.

From n examples that the model was not trained on, each with a score that says how badly the model fits it, comes the
⌈(n+1)·level⌉-th smallest score, q. A new example's answer is all that scores at most q. If it and the n are
exchangeable (drawn alike, in any order, and nothing in the model knows which is which), it holds the truth with a
probability of at least `level`, whatever the model, and of at most level + 1/(n+1) where scores have no ties. That is
on average over examples and over draws of the n; it is no promise for single classes or regions.

Scores: 1 − p of the true class (Sadinle, Lei, Wasserman 2019); |y − mean| / sd of a number, so that intervals are as
wide as the model thinks they must be (Lei et al. 2018). Different from them: a set always holds the likeliest class.
"""

import math

import torch
from torch import Tensor

from bayes_core.families import wide
from bayes_core.predict.forecast import Forecast


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


def class_scores(probabilities: Tensor, y: Tensor) -> Tensor:
    """1 − p of the true classes, shape (n,)."""
    p = wide(probabilities)
    return 1 - p.gather(-1, y.to(p.device)[:, None])[:, 0]


def class_sets(probabilities: Tensor, threshold: float) -> Tensor:
    """Which classes are in the sets of examples with these probabilities (n, classes): true or false, likewise."""
    p = wide(probabilities)
    within: Tensor = (1 - p <= threshold) | (p == p.amax(-1, keepdim=True))
    return within


def number_scores(forecast: Forecast, y: Tensor) -> Tensor:
    """|y − mean| / sd, shape (n,)."""
    return (wide(y).to(forecast.mean.device) - forecast.mean).abs() / forecast.sd


def interval(forecast: Forecast, threshold: float) -> tuple[Tensor, Tensor]:
    """mean ∓ threshold·sd."""
    half = threshold * forecast.sd
    return forecast.mean - half, forecast.mean + half


def measured_sets(probabilities: Tensor, y: Tensor, threshold: float) -> tuple[float, float]:
    """Of examples with known classes: the share whose sets hold them, and the mean size of the sets."""
    sets = class_sets(probabilities, threshold)
    held = sets.gather(-1, y.to(sets.device)[:, None])
    return float(held.double().mean()), float(sets.double().sum(-1).mean())


def measured_intervals(forecast: Forecast, y: Tensor, threshold: float) -> tuple[float, float]:
    """Of examples with known numbers: the share within their intervals, and the intervals' mean width."""
    low, high = interval(forecast, threshold)
    y = wide(y).to(low.device)
    within: Tensor = torch.logical_and(low <= y, y <= high)
    return float(within.double().mean()), float((high - low).mean())
