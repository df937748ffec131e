"""What the runs came to, in one JSON file: enough to make every table again without the run folders.

An entry is one run: its settings, rounds and seed, how it ended, and its figures. Entries are found by their settings,
never by their place in a table: one run serves every table that asks for it, and a run with other rounds or settings is
another entry. Where the data lie, and what a version of the product is called, is not among them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbayes.errors import CommandError
from fedbayes.protocol.columns import METRICS, MODELS
from fedbayes.protocol.files import locked, replace_file
from fedbayes.protocol.settings import defaults
from server_app.evaluations import read_evaluations
from server_app.report.certainty import MILESTONES
from server_app.rows import best, number, series
from server_app.stored import read_rows

FORMAT = 1
FINISHED, FAILED, STOPPED, NO_DATA = "finished", "failed", "stopped", "no data"
KEPT = tuple(f"{model}_{metric.key}" for metric in METRICS for model in MODELS)
OTHERS = ("clusters", "adjusted_rand")
CURVES = ("pm_accuracy", "gm_accuracy")
LOCK_WAIT = 30.0
DIGITS = 6


@dataclass(frozen=True)
class Entry:
    """One run."""

    name: str  # of its cell, for people
    seed: int
    rounds: int
    settings: Mapping[str, Any]
    state: str = FINISHED
    why: str = ""
    seconds: float = 0.0  # that its rounds took
    figures: Mapping[str, float] = field(default_factory=dict)  # of the last round
    best: Mapping[str, tuple[float, int]] = field(default_factory=dict)  # chosen on test data, and its round
    curves: Mapping[str, list[tuple[int, float]]] = field(default_factory=dict)
    entropy: Mapping[str, Any] = field(default_factory=dict)  # round → site → binned counts

    def is_of(self, wanted: Mapping[str, Any], usual: Mapping[str, Any] | None = None) -> bool:
        """Whether it was made with these settings; one that did not exist then has its default (`usual`)."""
        mine = self.settings
        if any(mine.get(key) != wanted[key] for key in ("method", "dataset", "size") if key in wanted):
            return False  # nearly all of them
        usual = defaults() if usual is None else usual
        return all(mine.get(key, usual.get(key)) == value for key, value in wanted.items())

    def as_json(self) -> str:
        content = {key: value for key, value in vars(self).items() if value not in ("", {})}
        return json.dumps(content, ensure_ascii=False)


class Ledger:
    """The file; several commands may write to it at once."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.entries = _read(file)

    def find(self, wanted: Mapping[str, Any]) -> Entry | None:
        """The entry of this run: a finished one, where there is one."""
        found = [entry for entry in self.entries if entry.is_of(wanted)]
        return next((entry for entry in found if entry.state == FINISHED), found[-1] if found else None)

    def add(self, entry: Entry) -> None:
        """In place of one of the same run, with what others have written in the meantime."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        busy = CommandError(f"Another command is writing {self.file}.")
        with locked(self.file.parent, LOCK_WAIT, busy):
            written = _read(self.file)
            same = [one for one in written if one.is_of(entry.settings)]
            others = [one for one in written if one not in same]
            if entry.state != FINISHED:  # another command may have finished it in the meantime
                entry = next((one for one in same if one.state == FINISHED), entry)
            self.entries = sorted([*others, entry], key=lambda one: (one.name, one.rounds, one.seed))
            lines = ",\n".join(one.as_json() for one in self.entries)
            replace_file(self.file, f'{{"format": {FORMAT}, "entries": [\n{lines}\n]}}\n'.encode())


def _read(file: Path) -> list[Entry]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise CommandError(f"The ledger {file} cannot be read: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CommandError(f"{file} is no ledger of format {FORMAT}; take another file with --ledger.")
    try:
        return [Entry(**entry) for entry in content["entries"]]
    except (KeyError, TypeError) as error:
        raise CommandError(f"The ledger {file} has an entry that cannot be used: {error}.") from None


def measured(folder: Path, rounds: int, keeps_entropy: bool = False) -> dict[str, Any]:
    """What an entry tells of a finished run, from its folder."""
    rows = read_rows(folder / "rounds.csv")
    final = next((row for row in rows if row["round"] == str(rounds)), {})
    found: dict[str, Any] = {
        "seconds": round(sum(number(row, "seconds") or 0.0 for row in rows), 1),
        "figures": {
            column: round(value, DIGITS)
            for column in (*KEPT, *OTHERS)
            if (value := number(final, column)) is not None
        },
        "best": {column: list(peak) for column in CURVES if (peak := best(rows, column))},
        "curves": {
            column: [list(pair) for pair in line] for column in CURVES if (line := series(rows, column))
        },
    }
    if keeps_entropy:
        found["entropy"] = {
            str(line["round"]): {site: told.get("pm_entropy") for site, told in line["sites"].items()}
            for line in read_evaluations(folder)
            if line["round"] in MILESTONES
        }
    return found
