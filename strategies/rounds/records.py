"""What the round loop passes around: uploads, rows, and where a run is written down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from strategies.rounds.measures import Columns


class Journal(Protocol):
    """Where a run is written down; the server app's run folder is one."""

    def append(
        self, row: Columns, clients: Sequence[Columns], evidence: Mapping[str, Any] | None
    ) -> None: ...

    def keep(self, name: str, evidence: Mapping[str, Any]) -> None: ...

    def save_checkpoint(
        self, server_round: int, tensors: Mapping[str, Tensor], memory: Mapping[str, Any]
    ) -> None: ...


@dataclass(frozen=True)
class Upload:
    """Whose contribution to a round was used; the distribution itself is added up and forgotten."""

    site: str
    n_train: int
    report: Mapping[str, Any]  # what else the client's half of the method said


@dataclass
class Row:
    """One round as the CSV files tell it, for the federation and for each site."""

    columns: Columns
    clients: dict[str, Columns] = field(default_factory=dict)
    evidence: dict[str, Any] | None = None  # of an evaluated round: what only the report needs

    def add_measures(self, pooled: Columns, each: Mapping[str, Columns]) -> None:
        self.columns |= pooled
        for site, columns in each.items():
            self.clients[site] = {"status": "idle"} | self.clients.get(site, {}) | columns

    def client_rows(self) -> list[Columns]:
        number = self.columns["round"]
        return [{"round": number, "site": site, **self.clients[site]} for site in sorted(self.clients)]
