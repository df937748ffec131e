"""Early stopping: a run ends when the models have not become better on validation data for some evaluations.

What is watched is the NLL of the personal models on what clients have held out (`validation-fraction`), of the global
one where a method has no personal models. Nothing here looks at test data.
"""

from collections.abc import Mapping
from typing import Any

WATCHED = ("pm_val_nll", "gm_val_nll")


class EarlyStop:
    """`patience` evaluations without a new best; 0: never."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best: float | None = None
        self.at = 0  # the round of the best
        self.waited = 0
        self.seen = -1  # the latest round that was looked at

    def see(self, number: int, columns: Mapping[str, Any]) -> None:
        """The figures of an evaluated round."""
        value = next((columns[name] for name in WATCHED if name in columns), None)
        if value is None or number <= self.seen:  # a run that goes on measures its last round again
            return
        self.seen = number
        if self.best is None or value < self.best:
            self.best, self.at, self.waited = float(value), number, 0
        else:
            self.waited += 1

    @property
    def over(self) -> bool:
        return 0 < self.patience <= self.waited

    @property
    def sentence(self) -> str:
        return (
            f"Stopped early: the NLL on validation data was best after round {self.at} ({self.best:.4f}), and no "
            f"better in {self.waited} evaluation{'s' * (self.waited > 1)} since."
        )

    def memory(self) -> dict[str, Any]:
        return {"best": self.best, "at": self.at, "waited": self.waited, "seen": self.seen}

    def remember(self, said: Mapping[str, Any], again: bool) -> None:
        """From a checkpoint; `again`: that run had ended, and whoever lets it go on wants it to go on."""
        self.best, self.at, self.seen = said.get("best"), int(said.get("at", 0)), int(said.get("seen", -1))
        self.waited = 0 if again else int(said.get("waited", 0))
