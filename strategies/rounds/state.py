"""What a run of a method is made of, as plain data: the server's state, uploads, what came of an exchange."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from bayes_core.server.aggregate import Aggregate
from fedbayes.protocol.messages import STATISTICS
from strategies.rounds.roster import Site

KEPT = "kept/"  # how tensors that stay at the server are called in a checkpoint
Fresh = Callable[..., Tensor]  # fresh(*words): the weights (T,) of a newly initialised network, by its words


@dataclass(frozen=True)
class State:
    """All that the server knows between two rounds."""

    sent: Mapping[str, Tensor]  # what sites receive, by name
    kept: Mapping[str, Tensor] = field(default_factory=dict)  # what stays at the server
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON
    # The buffers (B,) that go with what is sent, by the same names, where the network has such (batch norm).
    statistics: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> "State":
        """From a checkpoint."""
        sent, kept, statistics = {}, {}, {}
        for name, tensor in tensors.items():
            if name.startswith(KEPT):
                kept[name.removeprefix(KEPT)] = tensor
            elif name.endswith(STATISTICS):
                statistics[name.removesuffix(STATISTICS)] = tensor
            else:
                sent[name] = tensor
        return cls(sent, kept, facts, statistics)


@dataclass(frozen=True)
class Part:
    """What one named tensor of an upload must be, and which sum it is added to."""

    into: str
    base: Tensor | None = (
        None  # the distribution that it is a change of; None: a tensor that stands for itself …
    )
    shape: tuple[int, ...] = ()  # … of this shape


@dataclass(frozen=True)
class Upload:
    """One site's contribution to a round."""

    site: str
    n_train: int
    report: Mapping[str, Any]  # what else the client's half of the method said
    weight: float = 1.0
    parts: Mapping[str, Tensor] = field(
        default_factory=dict
    )  # empty where uploads are added up and forgotten
    statistics: Mapping[str, Tensor] = field(default_factory=dict)  # the buffers that go with the parts


@dataclass
class Came:
    """What came of one exchange: the usable uploads, by site id, and what they add up to."""

    number: int  # of the round
    sites: Mapping[str, Site] = field(default_factory=dict)  # all that take part in the run
    uploads: list[Upload] = field(default_factory=list)
    sums: dict[str, Aggregate] = field(default_factory=dict)
    statistics: dict[str, Aggregate] = field(default_factory=dict)  # of the buffers that go with each sum
    left_out: list[str] = field(default_factory=list)  # sites whose usable uploads do not count
    documents: dict[str, Any] = field(default_factory=dict)  # NAME → JSON that a step leaves for the report

    def counting(self) -> "Came":
        """Without the uploads that do not count: where uploads are held, those have no tensors."""
        return replace(self, uploads=[one for one in self.uploads if one.site not in self.left_out])


@dataclass(frozen=True)
class Traits:
    """What a method needs, and what it has."""

    every_site: bool = (
        False  # a round takes an upload from each site, but for those that fail in all attempts
    )
    single_uploads: bool = (
        False  # the step sees each upload, so S of them are in memory, and no secure sum will do
    )
    uploads: bool = True  # clients send something
    global_model: bool = True
    shared_part: bool = False  # what is sent is a part of each network, of use to a site that took no part
    personal_model: bool = True
    clusters: bool = False
    numbers: bool = True  # it can learn a regression
