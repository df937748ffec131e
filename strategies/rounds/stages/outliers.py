"""Absurd uploads: so far outside of what earlier rounds brought that they are taken for broken or hostile.

A few scalars tell: how far μ (or θ) moved from the server's, as root mean square over the weights, and the root of
KL(w_i ‖ w) for each weight. Where weights have gates: how far λ moved, and how far its mean did. Honest clients open as
many gates as they close, so that the mean moves by hundredths; one that closes all of them has small divergences, since
KL counts what is on, and would close them for everybody in some rounds.

An upload is judged when it arrives, against earlier rounds and not against the others of its own round, so the verdict
does not depend on the order of arrival, and nothing needs to be kept.

The bound is `FACTOR` times the largest of the last rounds' medians. A median is not moved by a few bad uploads; the
largest of several forgives quiet rounds; all readable uploads count, so that where the bound was wrong it is
right a round later. Different clients are meant to differ: on rotated and mixed data no honest upload came beyond an
eighth of the bound.
"""

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayes_core.families import Family, family_of
from bayes_core.server.blocks import blocks
from fedbayes.protocol.settings import Settings
from strategies.rounds.replies import BadReply
from strategies.rounds.stages import Arrival

if TYPE_CHECKING:
    from strategies.rounds.method import ServerMethod

FACTOR = 10.0
ROUNDS = 10  # that are remembered
# Of a weight. Whatever came before, a value below SMALL is not absurd; LARGE is the first round's bound: weights of
# networks are about 0.1, σ too, and gates are between 0 and 1.
SMALL = {"move": 0.01, "plain move": 0.01, "divergence": 0.1, "gate move": 0.1, "gate shift": 0.1}
LARGE = {"move": 1.0, "plain move": 1.0, "divergence": 10.0, "gate move": 1.0, "gate shift": 0.25}
WORDS = {
    "move": "moved its weights by",
    "plain move": "moved its plain weights by",
    "divergence": "went away from the server's distribution by",
    "gate move": "moved its gates by",
    "gate shift": "opened or closed its gates by a mean of",
}

Scalars = dict[str, float]


def scalars_of(upload: Tensor, base: Tensor, family: Family) -> Scalars:
    """`move`, where a family has uncertainty `divergence`, where it has gates how they moved; of the mean weight."""
    squares = dict.fromkeys(("move", "divergence") if family.uncertain else ("move",), 0.0)
    gates = family.uncertain and family.gated and len(upload) > 2
    if gates:
        squares["gate move"] = 0.0
    shift = 0.0
    for block in blocks(upload.shape[1]):
        v, w = upload[:, block], base[:, block]
        squares["move"] += float((v[0] - w[0]).square().sum())
        if family.uncertain:
            squares["divergence"] += float(family.kl_each(v, w).sum())
        if gates:
            moved = v[2] - w[2]
            squares["gate move"] += float(moved.square().sum())
            shift += float(moved.sum())
    size = upload.shape[1]
    found = {name: max(value / size, 0.0) ** 0.5 for name, value in squares.items()}
    return {**found, "gate shift": abs(shift / size)} if gates else found


class Outliers:
    """Remembers the medians of the last rounds; judges each upload by them."""

    name = "outliers"
    left_out = ()

    def __init__(self, family: Family, medians: Sequence[Mapping[str, float]] = ()) -> None:
        self.family = family
        self.medians = [dict(one) for one in medians]
        self._round: list[Scalars] = []

    def open(self, number: int, expected: int) -> None:
        self._round = []

    def arrive(self, arrival: Arrival) -> list[Arrival]:
        """BadReply for an absurd upload: of several distributions in one, for an absurd one."""
        for name, tensor in arrival.tensors.items():
            if (base := arrival.expected[name].base) is not None:
                self.judge(tensor, base)
        return [arrival]

    def judge(self, upload: Tensor, base: Tensor) -> None:
        family = family_of(base, self.family)
        scalars = scalars_of(upload, base, family)
        if family is not self.family:  # plain weights beside a distribution move at a pace of their own
            scalars = {"plain move": scalars["move"]}
        self._round.append(scalars)
        for name, value in scalars.items():
            bound = self.bound(name, base)
            if not value <= bound:
                raise BadReply(
                    f"an absurd update: it {WORDS[name]} {value:.3g} a weight, and {bound:.3g} is the bound"
                )

    def bound(self, name: str, base: Tensor) -> float:
        # a run that an earlier version began knows nothing of gates
        if known := [one[name] for one in self.medians if name in one]:
            return max(SMALL[name], FACTOR * max(known))
        scale = float(base[0].square().mean().sqrt()) if name in ("move", "plain move") else 0.0
        return max(LARGE[name], 10 * scale)  # a network may have larger weights than ours

    def close(self, used: int) -> list[Arrival]:
        """From now on this round's uploads are history."""
        if self._round:
            names = dict.fromkeys(name for one in self._round for name in one)
            medians = {name: median_low(one[name] for one in self._round if name in one) for name in names}
            if all(torch.tensor(list(medians.values())).isfinite()):
                self.medians = [*self.medians, medians][-ROUNDS:]
        self._round = []
        return []

    def memory(self) -> list[dict[str, float]]:
        return self.medians

    def remember(self, memory: Sequence[Mapping[str, float]]) -> None:
        self.medians = [dict(one) for one in memory]


def stage(settings: Settings, method: "ServerMethod") -> Outliers:
    """Always there."""
    return Outliers(method.family)
