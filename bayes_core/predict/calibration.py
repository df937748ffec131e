"""Whether probabilities mean what they say: the reliability curve, and one temperature that puts them right.

Temperature scaling (Guo et al., "On Calibration of Modern Neural Networks", 2017): p ∝ p^(1/T), with T chosen on
validation data. Different from it: the Monte-Carlo predictive is scaled as a whole, not each draw's logits, so the
likeliest class never changes and the loss is convex in 1/T; and `PSEUDO` further examples are counted as if they had
come out exactly as predicted. Without these a validation set without an error would ask for T = 0.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayes_core.families import wide

PSEUDO = 10.0
COLDEST, HOTTEST = 0.05, 20.0
TINY = torch.finfo(torch.float32).tiny


class Bin(NamedTuple):
    """One point of the reliability curve: mean confidence and accuracy of n examples."""

    confidence: float
    accuracy: float
    n: int


def reliability_bins(total: Mapping[str, Sequence[float]]) -> list[Bin]:
    """The curve behind ECE, from a tally (see metrics.py); empty bins are left out."""
    columns = zip(total["bin_confidence"], total["bin_correct"], total["bin_n"], strict=True)
    return [Bin(confidence / n, correct / n, int(n)) for confidence, correct, n in columns if n]


def scale(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised: T > 1 makes it less confident."""
    return (wide(probabilities).clamp_min(TINY).log() / temperature).softmax(-1)


def fit_temperature(probabilities: Tensor, y: Tensor) -> float:
    """The T that minimises the NLL of validation labels `y`, by bisection on its derivative by 1/T."""
    logits = wide(probabilities).clamp_min(TINY).log()
    p, y = logits.softmax(-1), y.to(logits.device)
    observed = logits.gather(-1, y[:, None]).sum()
    wanted = observed + PSEUDO / len(y) * (p * logits).sum()

    def slope(inverse: float) -> float:
        """d NLL / d(1/T), which only grows with 1/T."""
        expected = ((inverse * logits).softmax(-1) * logits).sum()
        return float((1 + PSEUDO / len(y)) * expected - wanted)

    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 2 / (low + high)
