"""Accuracy, NLL, Brier, ECE and uncertainty; RMSE, NLL and coverage: all from sums that add up over clients.

A client sends its tally (counts, sums, binned counts: never examples or labels); the server adds the tallies
of all clients and summarises once, so every metric pools all test examples.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bayes_core.families import wide
from bayes_core.predict.forecast import LEVEL, Forecast
from bayes_core.predict.uncertainty import entropy

BINS = 15
RANKS = (
    20  # of where targets fall in their predictives: the outermost bins are what a 90 % interval leaves out
)
TALLY_LENGTHS = dict.fromkeys(("n", "correct", "nll", "brier", "entropy", "mutual_information"), 1)
TALLY_LENGTHS |= dict.fromkeys(("bin_n", "bin_confidence", "bin_correct"), BINS)
NUMBERS_LENGTHS = {"n": 1, "squared_error": 1, "nll": 1, "ranks": RANKS}  # of a regression's tally
ROUNDED = 1e-3  # a probability may be a little above 1
HIGHEST = 1e3  # of a single example's NLL or entropy, which float32 keeps below 90 for each class
BOUNDS = {  # of a mean over examples
    "correct": (0.0, 1.0),
    "nll": (-ROUNDED, HIGHEST),
    "brier": (0.0, 2 + 10 * ROUNDED),
    "entropy": (-ROUNDED, HIGHEST),
    "mutual_information": (-ROUNDED, HIGHEST),
}
NUMBERS_BOUNDS = {"squared_error": (0.0, math.inf), "nll": (-HIGHEST, math.inf)}
Tally = dict[str, list[float]]  # every entry adds up over clients


def tally(probabilities: Tensor, y: Tensor, mutual_information: Tensor | None = None) -> Tally:
    """The sums behind the metrics for class probabilities (n, classes); one network's draws do not disagree."""
    probabilities, y = probabilities.cpu(), y.cpu()  # a Mac's GPU has no float64
    p = probabilities.double().clamp_min(torch.finfo(torch.float32).tiny)
    confidence, predicted = p.max(-1)
    correct = (predicted == y).double()
    bins = (confidence * BINS).long().clamp_(0, BINS - 1)

    def binned(values: Tensor) -> list[float]:
        return torch.zeros(BINS, dtype=torch.float64, device=p.device).index_add_(0, bins, values).tolist()

    return {
        "n": [float(len(y))],
        "correct": [correct.sum().item()],
        "nll": [-p.gather(-1, y[:, None]).log().sum().item()],
        "brier": [(p - one_hot(y, p.shape[-1])).square().sum().item()],
        "entropy": [entropy(p).sum().item()],
        "mutual_information": [0.0 if mutual_information is None else mutual_information.sum().item()],
        "bin_n": binned(torch.ones_like(confidence)),
        "bin_confidence": binned(confidence),
        "bin_correct": binned(correct),
    }


def tally_numbers(forecast: Forecast, y: Tensor) -> Tally:
    """The sums behind a regression's metrics. `ranks` counts P(Y ≤ y): a calibrated model fills all bins alike."""
    y = wide(y)
    ranks = (forecast.cdf(y) * RANKS).long().clamp_(0, RANKS - 1)
    return {
        "n": [float(len(y))],
        "squared_error": [(forecast.mean - y).square().sum().item()],
        "nll": [-forecast.log_density(y).sum().item()],
        "ranks": torch.bincount(ranks.cpu(), minlength=RANKS).double().tolist(),
    }


def tally_lengths(classes: Sequence[str]) -> dict[str, int]:
    """What a tally holds, for these classes or, without any, for numbers."""
    return TALLY_LENGTHS if classes else NUMBERS_LENGTHS


def is_possible(total: Mapping[str, Sequence[float]], examples: int) -> bool:
    """Whether a tally that came from elsewhere can be one of so many examples: finite, in bounds, adding up."""
    if total["n"][0] != examples or not all(
        torch.tensor(numbers).isfinite().all() for numbers in total.values()
    ):
        return False
    bounds = (NUMBERS_BOUNDS if "ranks" in total else BOUNDS).items()
    if not all(low * examples <= total[name][0] <= high * examples for name, (low, high) in bounds):
        return False
    if "ranks" in total:
        return min(total["ranks"]) >= 0 and sum(total["ranks"]) == examples
    bins = [total[name] for name in ("bin_n", "bin_correct", "bin_confidence")]
    within = all(
        0 <= correct <= n and 0 <= sure <= n * (1 + ROUNDED) for n, correct, sure in zip(*bins, strict=True)
    )
    return within and sum(bins[0]) == examples and sum(bins[1]) == total["correct"][0]


def add(tallies: Sequence[Mapping[str, Sequence[float]]]) -> Tally:
    """The tally of all examples together."""
    return {
        key: [sum(values) for values in zip(*(one[key] for one in tallies), strict=True)]
        for key in tallies[0]
    }


def summarise(total: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Everything per example; the expected calibration error over 15 bins; the share of numbers in their intervals."""
    n = total["n"][0]
    if "ranks" in total:
        outside = round(RANKS * (1 - LEVEL) / 2)
        return {
            "rmse": math.sqrt(total["squared_error"][0] / n),
            "nll": total["nll"][0] / n,
            "coverage": sum(total["ranks"][outside:-outside]) / n,
        }
    gaps = zip(total["bin_confidence"], total["bin_correct"], strict=True)
    return {
        "accuracy": total["correct"][0] / n,
        **{name: total[name][0] / n for name in ("nll", "brier", "entropy", "mutual_information")},
        "ece": sum(abs(confidence - correct) for confidence, correct in gaps) / n,
    }
