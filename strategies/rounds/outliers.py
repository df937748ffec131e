"""Absurd uploads: so far outside of what earlier rounds brought that they are taken for broken or hostile.

Two scalars tell: how far μ (or θ) moved from the server's, as root mean square over the weights, and the root of
KL(w_i ‖ w) for each weight. An upload is judged when it arrives, against earlier rounds and not against the others
of its own round, so the verdict does not depend on the order of arrival, and nothing needs to be kept.

The bound is `FACTOR` times the largest of the last rounds' medians. A median is not moved by a few bad uploads; the
largest of several forgives quiet rounds; all readable uploads count, so that where the bound was wrong it is
right a round later. Different clients are meant to differ: on rotated and mixed data no honest upload came beyond an
eighth of the bound.
"""

from collections.abc import Mapping, Sequence
from statistics import median_low

import torch
from torch import Tensor

from bayes_core.families import Family
from bayes_core.server.aggregate import blocks
from strategies.rounds.replies import BadReply

FACTOR = 10.0
ROUNDS = 10  # that are remembered
SMALL = {"move": 0.01, "divergence": 0.1}  # of a weight; whatever came before, this is not absurd
LARGE = {
    "move": 1.0,
    "divergence": 10.0,
}  # the bound in the first round: network weights are about 0.1, σ too
WORDS = {"move": "moved its weights by", "divergence": "went away from the server's distribution by"}

Scalars = dict[str, float]


def scalars_of(upload: Tensor, base: Tensor, family: Family) -> Scalars:
    """`move` and, where a family has uncertainty, `divergence`; roots of means over the weights."""
    total = dict.fromkeys(LARGE if family.uncertain else ("move",), 0.0)
    for block in blocks(upload.shape[1]):
        v, w = upload[:, block], base[:, block]
        total["move"] += float((v[0] - w[0]).square().sum())
        if family.uncertain:
            total["divergence"] += float(family.kl_each(v, w).sum())
    return {name: max(value / upload.shape[1], 0.0) ** 0.5 for name, value in total.items()}


class Outliers:
    """Remembers the medians of the last rounds; judges each upload by them."""

    def __init__(self, medians: Sequence[Mapping[str, float]] = ()) -> None:
        self.medians = [dict(one) for one in medians]  # JSON: goes into the checkpoint
        self._round: list[Scalars] = []

    def judge(self, upload: Tensor, base: Tensor, family: Family) -> None:
        """BadReply for an absurd upload."""
        scalars = scalars_of(upload, base, family)
        self._round.append(scalars)
        for name, value in scalars.items():
            bound = self.bound(name, base)
            if not value <= bound:
                raise BadReply(
                    f"an absurd update: it {WORDS[name]} {value:.3g} a weight, and {bound:.3g} is the bound"
                )

    def bound(self, name: str, base: Tensor) -> float:
        if self.medians:
            return max(SMALL[name], FACTOR * max(one[name] for one in self.medians))
        scale = float(base[0].square().mean().sqrt()) if name == "move" else 0.0
        return max(LARGE[name], 10 * scale)  # a network may have larger weights than ours

    def close_round(self) -> None:
        """From now on this round's uploads are history."""
        if self._round:
            names = self._round[0]
            medians = {name: median_low(one[name] for one in self._round) for name in names}
            if all(torch.tensor(list(medians.values())).isfinite()):
                self.medians = [*self.medians, medians][-ROUNDS:]
        self._round = []
