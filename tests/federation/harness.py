"""What the federation tests share: the settings of a small run, and its outcome."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from server_app.stored import load_checkpoint, read_config, read_rows

SMALL = {"rounds": 4, "eval-every": 2, "local-steps": 3, "eval-samples": 3, "batch-size": 10, "size": "4+4"}


@dataclass
class Outcome:
    """A run folder and what the run said."""

    folder: Path
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, str]]:
        return read_rows(self.folder / "rounds.csv")

    @property
    def clients(self) -> list[dict[str, str]]:
        return read_rows(self.folder / "clients.csv")

    @property
    def metrics(self) -> list[tuple[str, ...]]:
        """What two runs of one seed must share: every column but the time, a method's own included."""
        return [tuple(cell for name, cell in row.items() if name != "seconds") for row in self.rows]

    @property
    def state(self) -> str:
        return str((read_config(self.folder) or {}).get("state"))

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        checkpoint = load_checkpoint(self.folder)
        assert checkpoint
        return checkpoint[1]

    def said(self, event: str) -> list[str]:
        return [str(one.get("message")) for one in self.events if one["event"] == event]
