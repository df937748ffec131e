"""The run folder OUT/RUN: settings, metrics, checkpoint, resume.

Order of writing, which makes a run resumable after a crash at any moment: row t of rounds.csv and
clients.csv is appended after exchange t+1 has measured it, then checkpoint t+1 replaces checkpoint t.
A resumed run therefore drops the rows from its checkpoint's round on, and repeats that exchange. What is
known of row t before it is measured (failures, seconds, bytes) travels in the checkpoint.
"""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedbayes import __version__
from fedbayes.protocol.agreement import Agreement
from fedbayes.protocol.columns import (
    MEASURED,
    ROUND_COLUMNS,
    Column,
    client_columns,
    columns_of,
    round_columns,
)
from fedbayes.protocol.files import Lock, replace_file, take_lock
from fedbayes.protocol.settings import Settings
from server_app import evaluations
from server_app.sheets import Sheet, read_rows

FORMAT = 1
RESUME_MAY_CHANGE = ("rounds", "eval-every")
PLACES = ("resume", "resume-with", "out-dir", "data-dir")  # how and where, not what
CLOSING_ROUNDS = 100
LOCK_WAIT = 20.0  # seconds that a resumed run waits for the earlier attempt's last process


class RunError(Exception):
    """A run that cannot start or go on; its text is one sentence for the user."""


def read_config(path: Path) -> dict[str, Any] | None:
    """config.json of the run folder, or None where there is no run."""
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunError(f"{path / 'config.json'} cannot be read: {error}.") from None
    if config.get("format") != FORMAT:
        raise RunError(f"{path} has format {config.get('format')}; this version reads format {FORMAT}.")
    return config


class RunFolder:
    """The one writer of OUT/RUN, from `open` to `close`."""

    def __init__(self, path: Path, config: dict[str, Any], lock: Lock) -> None:
        self.path = path
        self.config = config
        self._lock = lock
        own = columns_of(config)
        self._rounds = Sheet(path / "rounds.csv", round_columns(own))
        self._clients = Sheet(path / "clients.csv", client_columns(own))

    @classmethod
    def open(
        cls, settings: Settings, facts: Mapping[str, Any], columns: Sequence[Column] = ()
    ) -> "RunFolder":
        """Create the folder of a new run, or take over that of a run to resume.

        `facts` are what hello told (clients, model, classes); a resumed run must find the same ones. `columns` are
        the method's own; a resumed run keeps those that it was started with beside them.
        """
        path = Path(settings.out_dir).resolve() / settings.run_name
        config = read_config(path)
        if config is None and settings.resume:
            raise RunError(f"There is no run to resume in {path}.")
        if config is not None and not settings.resume:
            raise RunError(
                f"{path} holds a run already; resume it (--resume {settings.run_name}) or take another name."
            )
        path.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(path)
        try:
            if config is None:
                config = _new_config(settings)
            else:
                facts = _facts_of_both(path, config, settings, facts)
        except BaseException:
            lock.close()
            raise
        config |= {"settings": settings.as_config() | {"resume": False, "resume-with": "*"}, **facts}
        own = {column.name: column.as_config() for column in (*columns_of(config), *columns)}
        if own:
            config["columns"] = list(own.values())
        return cls(path, config, lock)

    def begin(self, first_round: int) -> None:
        """Write what is known now, and drop the rows that the rounds to come will write (again)."""
        self.set_state("running")
        evaluations.drop_evaluations(self.path, since=first_round - 1)
        for sheet in (self._rounds, self._clients):
            sheet.begin(before=first_round - 1)

    def append(
        self,
        row: Mapping[str, Any],
        clients: Sequence[Mapping[str, Any]],
        evidence: Mapping[str, Any] | None,
    ) -> None:
        """One finished row of rounds.csv, its clients' rows and, where it was measured, its evidence."""
        if evidence is not None:
            evaluations.append_evaluation(self.path, row["round"], evidence)
        self._clients.append(clients)
        self._rounds.append([row])

    def keep(self, name: str, evidence: Mapping[str, Any]) -> None:
        """NAME.json: what a method found out on the way, for the report."""
        replace_file(self.path / f"{name}.json", json.dumps({"format": FORMAT, **evidence}).encode())

    def save_checkpoint(
        self, server_round: int, tensors: Mapping[str, Tensor], memory: Mapping[str, Any]
    ) -> None:
        """The server's state after `server_round` rounds; `memory` is what else the next round needs."""
        metadata = {
            "format": str(FORMAT),
            "uuid": self.config["uuid"],
            "round": str(server_round),
            "memory": json.dumps(memory),
        }
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        replace_file(self.path / "checkpoint.safetensors", save(contiguous, metadata))

    def load_checkpoint(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Round, tensors and memory of the last completed round; None before the first."""
        return load_checkpoint(self.path)

    def set_state(self, state: str, message: str = "") -> None:
        """running, finished, failed or stopped, with the reason in words."""
        self.config |= {"state": state, "message": message}
        replace_file(self.path / "config.json", json.dumps(self.config, indent=2).encode())

    def close(self) -> None:
        self._lock.close()


def load_checkpoint(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
    """Round, tensors and memory in a run folder's checkpoint; None without one."""
    file = path / "checkpoint.safetensors"
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as stored:
            metadata = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if metadata.get("format") != str(FORMAT):
            raise RunError(f"{file} has format {metadata.get('format')}; this version reads {FORMAT}.")
        return int(metadata["round"]), tensors, json.loads(metadata["memory"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise RunError(f"{file} is damaged ({error}); the run cannot be resumed from it.") from None


def _new_config(settings: Settings) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "formats": {
            "rounds.csv": FORMAT, "clients.csv": FORMAT, "checkpoint.safetensors": FORMAT,
            evaluations.FILE: evaluations.FORMAT,
        },
        "fedbayes": __version__,
        "run": settings.run_name,
        "uuid": str(uuid.uuid4()),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def _facts_of_both(
    path: Path, config: Mapping[str, Any], settings: Settings, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """What a resumed run knows: the facts of now, with all sites of before; RunError where they contradict it."""
    check_resumable(config, settings.as_config())
    for site, sizes in facts["sites"].items():
        if config["sites"].get(site, sizes) != sizes:
            raise RunError(
                f"Site {site} had {config['sites'][site]} when {path} was started and now has {sizes}: "
                "its data has changed."
            )
    saved = load_checkpoint(path)
    if saved and saved[0] > settings.rounds:
        raise RunError(f"{path} has {saved[0]} rounds already; resume it with rounds={saved[0]} or more.")
    for key in ("model", "classes", "partitions"):
        if config[key] != facts[key]:
            raise RunError(f"{path} was trained with {key} {config[key]}, not {facts[key]}.")
    return {**facts, "sites": config["sites"] | facts["sites"]}


def check_resumable(config: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """A resumed run may change only what cannot change its past rounds."""
    for key, before in config["settings"].items():
        now = settings.get(key)
        if key not in (*RESUME_MAY_CHANGE, *PLACES) and now != before:
            raise RunError(
                f"The run was started with {key}={before}, not {now}; --resume may change only "
                f"{' and '.join(RESUME_MAY_CHANGE)}."
            )


def resumed(settings: Settings) -> Settings:
    """The settings of a run that goes on: its own, but for those that `resume-with` names (* names all).

    Whoever resumes a run on a federation need not be at the machine where the run folder is.
    """
    if not settings.resume or settings.resume_with == "*":
        return settings
    path = Path(settings.out_dir) / settings.run_name
    config = read_config(path)
    if config is None:
        raise RunError(f"There is no run to resume in {path.resolve()}.")
    given = {"out-dir", "run-name", "resume", *filter(None, settings.resume_with.split(","))}
    now = settings.as_config()
    settings = Settings.parse(now | config["settings"] | {key: now[key] for key in given if key in now})
    saved = load_checkpoint(path)
    if config.get("state") == "finished" and saved and saved[0] == settings.rounds:
        raise RunError(
            f"The run {settings.run_name} is finished ({saved[0]} rounds); train longer with rounds={2 * saved[0]}."
        )
    return settings


def stored_agreement(settings: Settings) -> Agreement | None:
    """What the sites of a run that goes on agreed on when it began; None for a new one."""
    config = read_config(Path(settings.out_dir) / settings.run_name) if settings.resume else None
    return Agreement.read(json.dumps(config["agreement"])) if config and "agreement" in config else None


def closing_rows(path: Path) -> list[dict[str, str]]:
    """The measured rows of the last rounds, without their empty cells: what a closing table is made from.

    Of the columns that every run has, those of models; and all of the method's own.
    """
    rows = read_rows(path)
    latest = int(rows[-1]["round"]) if rows else 0
    fixed = set(ROUND_COLUMNS) - {"round", *MEASURED}
    return [
        {column: cell for column, cell in row.items() if cell and column not in fixed}
        for row in rows
        if int(row["round"]) >= latest - CLOSING_ROUNDS and any(row.get(column) for column in MEASURED)
    ]


def _take_lock(path: Path) -> Lock:
    """The writer's lock."""
    busy = RunError(f"Another process is writing the run in {path}.")
    try:
        return take_lock(path / ".writer.lock", LOCK_WAIT, busy)
    except OSError as error:
        raise RunError(f"{path} cannot be locked: {error.strerror}.") from None
