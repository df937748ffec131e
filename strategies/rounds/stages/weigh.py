"""What an upload counts: by its number of examples, and by how sure its client is of its own training data.

Uncertainty-aware aggregation (`aggregation-confidence`): the paper suggests it and does not do it ("for the sake of
fairness"). A client reports the mean entropy of its predictive on its own training data, one number. It says so itself:
this helps against bad data, not against a client that lies.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbayes.protocol.messages import UNCERTAINTY
from fedbayes.protocol.settings import Settings, SettingsError
from strategies.rounds.replies import BadReply
from strategies.rounds.stages import Arrival

if TYPE_CHECKING:
    from strategies.rounds.method import ServerMethod

TICK = 2.0**-20  # weights are multiples of it: their sum has no rounding error, in whatever order they come


def check_uncertainty(report: Mapping[str, Any]) -> None:
    """BadReply unless the report has an entropy."""
    value = report.get(UNCERTAINTY)
    if not isinstance(value, float) or not math.isfinite(value) or value < 0:
        raise BadReply(f"the uncertainty {value!r} instead of a number of at least 0")


def weight_of(rule: str, report: Mapping[str, Any]) -> float:
    """What an upload counts: with the rule `weight` 1/perplexity, else 1.

    exp(entropy) is the number of classes among which a client is undecided: one that hesitates between five counts
    a fifth of one that is sure.
    """
    if rule != "weight":
        return 1.0
    return max(round(math.exp(-report[UNCERTAINTY]) / TICK), 1) * TICK


def share_of(rule: str) -> float:
    """The share of the uploads that a rule leaves out."""
    return 0.0 if rule in ("off", "weight") else float(rule)


class Weigh:
    """Gives each upload its weight, and leaves the least certain ones out.

    Of n usable uploads ⌊share·n⌋ are left out, and of equally certain ones the last by site id; so the order in which
    they arrive does not matter, and no more than these are ever held. In an exchange before round 1, which compares
    everybody with everybody, all of them count.
    """

    name = "weigh"

    def __init__(self, rule: str, by_examples: bool) -> None:
        self.rule = rule
        self.by_examples = by_examples
        self.left_out: Sequence[str] = ()
        self.share, self.expected = 0.0, 0
        self.held: list[Arrival] = []

    def open(self, number: int, expected: int) -> None:
        self.share = share_of(self.rule) if number > 0 else 0.0
        self.expected, self.held, self.left_out = expected, [], ()

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        upload = arrival.upload
        if self.rule != "off":
            check_uncertainty(upload.report)
        arrival.weight *= (float(upload.n_train) if self.by_examples else 1.0) * weight_of(
            self.rule, upload.report
        )
        self.held.append(arrival)
        self.held.sort(key=lambda one: (one.upload.report.get(UNCERTAINTY, 0.0), one.upload.site))
        return self._released(self.expected)

    def close(self, used: int) -> list[Arrival]:
        """All but the ⌊share·used⌋ least certain."""
        released = self._released(used)
        self.left_out = [one.upload.site for one in self.held]
        self.held = []
        return released

    def _released(self, used: int) -> list[Arrival]:
        """Those that will not be left out, whoever is still to come."""
        surer = max(0, len(self.held) - int(self.share * used + 1e-9))
        released, self.held = self.held[:surer], self.held[surer:]
        return released

    def memory(self) -> None:
        return None

    def remember(self, memory: Any) -> None:
        """It has nothing to remember."""


def stage(settings: Settings, method: "ServerMethod") -> Weigh | None:
    rule, by_examples = (
        settings.aggregation_confidence,
        getattr(method.options, "weighting", "") == "examples",
    )
    if rule != "off" and not method.traits.uploads:
        raise SettingsError(
            f"aggregation-confidence weighs what clients send, and with method={settings.method} they send nothing."
        )
    return Weigh(rule, by_examples) if rule != "off" or by_examples else None
