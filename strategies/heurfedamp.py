"""HeurFedAMP, the server's half: FedAMP with attention by the angles between networks, in the same paper.

    ξ_ij = (1 − ξ_ii)·softmax over j ≠ i of σ·cos(w_i, w_j)

Networks that share their start have cosines near 1, so σ has to be large to tell them apart. Nothing here asks for all
clients in one round: with `clients-per-round` a mixture has the latest w_j of those that are absent.
"""

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from bayes_core.server.attention import by_angle
from fedbayes.protocol.columns import Column
from fedbayes.protocol.settings import NonNegative, Options, takes
from strategies.fedamp import FedAMP
from strategies.rounds.state import Traits


class AngleOptions(Options):
    sharpness: NonNegative = Field(alias="heurfedamp.sharpness")
    own: Annotated[
        float, takes("a number from 0 (1/N) up to, but not, 1", alias="heurfedamp.self", ge=0, lt=1)
    ]


class HeurFedAMP(FedAMP):
    """A cloud model for each client, by angles."""

    title = "HeurFedAMP"
    idea = "every client's network is drawn to a mixture of the networks that point the same way"
    traits = Traits(single_uploads=True, global_model=False)
    columns: ClassVar[tuple[Column, ...]] = FedAMP.columns[:3]
    reads: ClassVar[type[Options]] = AngleOptions

    def attention(self, w: Tensor) -> tuple[Tensor, dict[str, float]]:
        return by_angle(w, self.options.sharpness, self.options.own), {}


METHOD = HeurFedAMP
