"""Uncertainty-aware aggregation: clients that are not sure of their own training data count less, or not at all.

The paper suggests it and does not do it ("for the sake of fairness"). A client reports the mean entropy of its
predictive on its own training data, one number. It says so itself: this helps against bad data, not against a client
that lies.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from strategies.rounds.records import Upload
from strategies.rounds.replies import BadReply

TICK = 2.0**-20  # weights are multiples of it: their sum has no rounding error, in whatever order they come
Contribution = tuple[Upload, Tensor]


def check_uncertainty(report: Mapping[str, Any]) -> None:
    """BadReply unless the report has an entropy."""
    value = report.get("uncertainty")
    if not isinstance(value, float) or not math.isfinite(value) or value < 0:
        raise BadReply(f"the uncertainty {value!r} instead of a number of at least 0")


def weight_of(rule: str, report: Mapping[str, Any]) -> float:
    """What an upload counts: with the rule `weight` 1/perplexity, else 1.

    exp(entropy) is the number of classes among which a client is undecided: one that hesitates between five counts
    a fifth of one that is sure.
    """
    if rule != "weight":
        return 1.0
    return max(round(math.exp(-report["uncertainty"]) / TICK), 1) * TICK


def share_of(rule: str) -> float:
    """The share of the uploads that a rule leaves out."""
    return 0.0 if rule in ("off", "weight") else float(rule)


class HeldBack:
    """The least certain uploads of a round, as many as may be left out: no more of them are ever in memory.

    Of n usable uploads ⌊share·n⌋ are left out, and of equally certain ones the last by site id; so the order in which
    they arrive does not matter.
    """

    def __init__(self, share: float, expected: int) -> None:
        self.share = share
        self.expected = expected
        self.held: list[Contribution] = []

    def offer(self, upload: Upload, w: Tensor) -> list[Contribution]:
        """Takes an upload; gives those that will not be left out, whoever is still to come."""
        self.held.append((upload, w))
        self.held.sort(key=lambda one: (one[0].report.get("uncertainty", 0.0), one[0].site))
        return self.settle(self.expected)

    def settle(self, used: int) -> list[Contribution]:
        """Gives all but the ⌊share·used⌋ least certain."""
        surer = max(0, len(self.held) - int(self.share * used + 1e-9))
        released, self.held = self.held[:surer], self.held[surer:]
        return released
