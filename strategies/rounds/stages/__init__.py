"""Stages between a client's upload and the server's sum, which no method knows. Each has a file of its own.

The codec (fedbayes/protocol/codec.py) makes tensors of arrays first. Every stage then sees each upload as it arrives,
and may change it, drop it with a BadReply, hold it back until the exchange closes, or leave it out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from fedbayes.protocol.settings import Settings
from strategies.rounds.state import Part, Upload

if TYPE_CHECKING:
    from strategies.rounds.method import ServerMethod


@dataclass
class Arrival:
    """An upload between its reply and the sums."""

    upload: Upload
    expected: Mapping[str, Part]  # by name: what each tensor is a change of, and where it goes
    tensors: dict[str, Tensor] = field(default_factory=dict)
    statistics: dict[str, Tensor] = field(default_factory=dict)  # the buffers that go with them
    weight: float = 1.0


class Stage(Protocol):
    """What an intake asks of a stage."""

    name: str
    left_out: Sequence[str]  # sites whose usable uploads this exchange does without

    def open(self, number: int, expected: int) -> None:
        """An exchange of round `number` begins, in which so many sites are asked for uploads."""

    def arrive(self, arrival: Arrival) -> Iterable[Arrival]:
        """Those that go on now; BadReply for one that cannot be used."""

    def close(self, used: int) -> Iterable[Arrival]:
        """The exchange is over, with so many usable uploads: those that were held back and count after all."""

    def memory(self) -> Any:
        """What the next exchange needs to know of this one; JSON, for the checkpoint."""

    def remember(self, memory: Any) -> None:
        """The reverse of `memory`."""


def stages_of(settings: Settings, method: "ServerMethod") -> list[Stage]:
    """The stages of a run, in their order: as its settings ask for and its method allows."""
    from strategies.rounds.stages import outliers, private, weigh

    # An outliers' bound is made of medians that no noise hides; a private sum's clip does its work.
    chosen: tuple[ModuleType, ...] = (private,) if settings.dp_noise else (outliers, weigh)
    if settings.secure_sum:  # no stage sees single uploads
        from strategies.rounds.stages import secure

        chosen = (private, secure)
    found = (module.stage(settings, method) for module in chosen)
    return [stage for stage in found if stage is not None]
