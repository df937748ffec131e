"""`fedbayes runs`: the runs of a folder, as far as they can be read."""

import time
from calendar import timegm
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from fedbayes.errors import CommandError, printable
from fedbayes.launch.run_folder import correct_state, is_held, owner, saved_rounds
from server_app.rows import NONE, headline, last

COLOURS = {
    "running": "cyan", "starting": "cyan", "finished": "green", "failed": "red", "stopped": "yellow",
    "interrupted": "yellow", "unreadable": "red",
}  # fmt: skip
ROOMY = 110  # columns of a terminal that has room for frames
LEAST = 16  # characters of a run's name on a line


@dataclass(frozen=True)
class Listed:
    """One line of the table."""

    name: str
    state: str
    method: str = NONE
    dataset: str = NONE
    rounds: str = NONE
    personal: float | None = None
    global_: float | None = None
    created: float = 0.0  # seconds since 1970; 0 where it is not known


def list_runs(out_dir: Path) -> list[Listed]:
    """Every run in the folder, the oldest first. What is no run is left out; what is broken is named so.

    Of a run that was killed, config.json says so afterwards.
    """
    folders = sorted(path for path in out_dir.iterdir() if path.is_dir()) if out_dir.is_dir() else []
    found = by_age(listed(folder) for folder in folders)
    for run in found:
        if run.state == "interrupted":
            correct_state(out_dir / run.name)
    return found


def by_age(runs: Iterable[Listed | None]) -> list[Listed]:
    """Those that are there, the oldest first."""
    return sorted((run for run in runs if run is not None), key=lambda run: (run.created, run.name))


def listed(folder: Path) -> Listed | None:
    """What there is to say of the run in a folder; None where there is none."""
    from server_app.stored import RunError, read_config, read_rows

    try:
        config = read_config(folder)
        if config is None:
            if owner(folder) is not None:
                return Listed(folder.name, "starting", created=time.time())
            lost = any((folder / name).exists() for name in ("rounds.csv", "checkpoint.safetensors"))
            return Listed(folder.name, "unreadable") if lost else None
        settings = config["settings"]
        state = str(config["state"])
        if state == "running" and not is_held(folder):
            state = "interrupted"
        rows = read_rows(folder / "rounds.csv")
        return Listed(
            name=folder.name,
            state=state,
            method=str(settings["method"]),
            dataset=str(settings["dataset"]),
            rounds=f"{saved_rounds(folder)}/{settings['rounds']}",
            personal=last(rows, f"pm_{headline(rows)}"),
            global_=last(rows, f"gm_{headline(rows)}"),
            created=timegm(time.strptime(config["created"], "%Y-%m-%dT%H:%M:%SZ")),
        )
    except (RunError, CommandError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return Listed(folder.name, "unreadable")


def runs_table(runs: list[Listed], width: int = 140) -> Table:
    """As wide as all names; in a narrow terminal without frames, and with folded names rather than none."""
    roomy = width >= ROOMY
    table = Table(box=ROUNDED) if roomy else Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    longest = max((len(run.name) for run in runs), default=0)
    table.add_column("run", overflow="fold", min_width=min(longest, LEAST))
    table.add_column("method", no_wrap=True)
    table.add_column("dataset", overflow="fold", min_width=6)
    table.add_column("state", no_wrap=True)
    for title in ("rounds", "PM", "GM"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    for run in runs:
        scores = [NONE if value is None else f"{value:.3f}" for value in (run.personal, run.global_)]
        started = time.strftime("%d %b %H:%M", time.localtime(run.created)) if run.created else NONE
        state = f"[{COLOURS.get(run.state, 'default')}]{escape(printable(run.state))}[/]"
        named = [escape(printable(text)) for text in (run.name, run.method, run.dataset)]
        table.add_row(*named, state, escape(printable(run.rounds)), *scores, started)
    return table
