"""Accuracy, NLL, Brier, ECE and uncertainty, from sums that add up over clients.

A client sends its tally (counts, sums, binned counts: never examples or labels); the server adds the tallies
of all clients and summarises once, so every metric pools all test examples.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from bayes_core.uncertainty import entropy

BINS = 15
TALLY_LENGTHS = dict.fromkeys(("n", "correct", "nll", "brier", "entropy", "mutual_information"), 1)
TALLY_LENGTHS |= dict.fromkeys(("bin_n", "bin_confidence", "bin_correct"), BINS)
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


def add(tallies: Sequence[Mapping[str, Sequence[float]]]) -> Tally:
    """The tally of all examples together."""
    return {
        key: [sum(values) for values in zip(*(one[key] for one in tallies), strict=True)]
        for key in tallies[0]
    }


def summarise(total: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Everything per example, and the expected calibration error over 15 bins."""
    n = total["n"][0]
    gaps = zip(total["bin_confidence"], total["bin_correct"], strict=True)
    return {
        "accuracy": total["correct"][0] / n,
        **{name: total[name][0] / n for name in ("nll", "brier", "entropy", "mutual_information")},
        "ece": sum(abs(confidence - correct) for confidence, correct in gaps) / n,
    }
