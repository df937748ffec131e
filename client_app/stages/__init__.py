"""Stages between what a method has trained and what leaves the site, which no method knows. Each has its own file.

Every stage sees the upload in its turn and may add to its report or change its tensors; the codec
(fedbayes/protocol/codec.py) makes arrays of them last.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from client_app.method import ClientMethod, Trained
from client_app.stages import certainty, clip


@dataclass
class Departure:
    """An upload on its way out of the site."""

    uploads: dict[str, Tensor]
    report: dict[str, float]
    trained: Trained
    received: Mapping[str, Tensor]
    server_round: int


class Stage(Protocol):
    def leave(self, departure: Departure) -> None:
        """Change what leaves."""


def stages_of(method: ClientMethod) -> list[Stage]:
    """The stages of a run, in their order: as its settings ask for and its method allows."""
    found = (module.stage(method) for module in (certainty, clip))
    return [stage for stage in found if stage is not None]
