"""What the server's half of a method is: what it starts from, what an upload adds to, and the step that follows."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from flwr.serverapp import Grid
from torch import Tensor

from bayes_core import extrapolate
from bayes_core.families import Family
from bayes_core.server.aggregate import Aggregate, Mean
from fedbayes.protocol.codec import Wire
from fedbayes.protocol.settings import Settings
from strategies.rounds.confidence import share_of, weight_of
from strategies.rounds.records import Journal, Row, Upload
from strategies.rounds.roster import Roster


class ServerMethod:
    """One method at the server; strategies/rounds/loop.py asks it in every round."""

    family: Family
    aggregate_by: type[Aggregate] = Mean  # the paper's mean, unless a method offers another
    wants_uploads = True

    def __init__(self, settings: Settings, roster: Roster, tell: Callable[..., None]) -> None:
        self.settings = settings
        self.roster = roster
        self.tell = tell
        self.tensors: dict[str, Tensor] = {}  # all the server knows: what a checkpoint holds
        self.uploads: list[Upload] = []  # of this exchange, in the order of the site ids …
        self.aggregates: dict[str, Aggregate] = {}  # … and what they add up to, for each of the `tensors`

    @property
    def wire(self) -> Wire:
        return Wire(self.family, self.settings.wire, self.settings.rho_init)

    @abstractmethod
    def initial(self, weights: Tensor) -> dict[str, Tensor]:
        """The server's distributions before the first round, from an ordinary network's weights."""

    def base_of(self, report: Mapping[str, Any]) -> str:
        """Which of the server's distributions an upload started from; BadReply for an impossible report."""
        return "w"

    def add(self, upload: Upload, w: Tensor) -> None:
        """Use one upload; it is not kept."""
        base = self.base_of(upload.report)
        if base not in self.aggregates:
            self.aggregates[base] = self.aggregate_by(self.tensors[base])
        examples = float(upload.n_train) if self.settings.weighting == "examples" else 1.0
        sure = weight_of(self.settings.aggregation_confidence, upload.report)
        self.aggregates[base].add(w, examples * sure)

    def share_left_out(self) -> float:
        """Of this exchange's uploads: the least certain ones."""
        return share_of(self.settings.aggregation_confidence)

    def step(self) -> None:
        """w ← (1−β)·w + β·mean of the uploads, when all of them are in."""
        for base, aggregate in self.aggregates.items():
            self.tensors[base] = self.towards(self.tensors[base], aggregate.result())

    def towards(self, v: Tensor, target: Tensor) -> Tensor:
        """The (1−β) extrapolation, within the family."""
        return self.family.after_extrapolation(extrapolate(v, target, self.settings.beta))

    def prepare(self, grid: Grid, journal: Journal) -> Row:
        """What comes before round 1; gives row 0."""
        return Row({"round": 0})

    def describe(self, row: Row) -> None:
        """Add a method's own columns to the row of a round."""

    def memory(self) -> dict[str, Any]:
        """What else a method must know after a resume; JSON."""
        return {}

    def remember(self, memory: Mapping[str, Any]) -> None:
        """The reverse of `memory`."""
