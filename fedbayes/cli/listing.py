"""`fedbayes runs`: the runs of a folder, as far as they can be read."""

import time
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.box import ROUNDED
from rich.table import Table

from fedbayes.errors import CommandError
from fedbayes.launch.run_folder import is_held, owner, saved_rounds
from server_app.rows import NONE, headline, last

COLOURS = {
    "running": "cyan", "starting": "cyan", "finished": "green", "failed": "red", "stopped": "yellow",
    "interrupted": "yellow", "unreadable": "red",
}  # fmt: skip


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
    """Every run in the folder, the oldest first. What is no run is left out; what is broken is named so."""
    folders = sorted(path for path in out_dir.iterdir() if path.is_dir()) if out_dir.is_dir() else []
    return sorted(
        (run for folder in folders for run in _read(folder)), key=lambda run: (run.created, run.name)
    )


def _read(folder: Path) -> Iterator[Listed]:
    from server_app.stored import RunError, read_config, read_rows

    try:
        config = read_config(folder)
        if config is None:
            if owner(folder) is not None:
                yield Listed(folder.name, "starting", created=time.time())
            elif any((folder / name).exists() for name in ("rounds.csv", "checkpoint.safetensors")):
                yield Listed(folder.name, "unreadable")
            return
        settings = config["settings"]
        state = str(config["state"])
        if state == "running" and not is_held(folder):
            state = "interrupted"
        rows = read_rows(folder / "rounds.csv")
        yield Listed(
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
        yield Listed(folder.name, "unreadable")


def runs_table(runs: list[Listed]) -> Table:
    table = Table(box=ROUNDED)
    table.add_column("run", overflow="fold")
    for title in ("method", "dataset", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("rounds", "PM", "GM"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("started", no_wrap=True)
    for run in runs:
        scores = [NONE if value is None else f"{value:.3f}" for value in (run.personal, run.global_)]
        started = time.strftime("%d %b %H:%M", time.localtime(run.created)) if run.created else NONE
        state = f"[{COLOURS.get(run.state, 'default')}]{run.state}[/]"
        table.add_row(run.name, run.method, run.dataset, state, run.rounds, *scores, started)
    return table
