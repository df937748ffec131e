"""The run folder OUT/RUN as it is written: settings, metrics, checkpoint.

Order of writing, which makes a run resumable after a crash at any moment: row t of rounds.csv and
clients.csv is appended after exchange t+1 has measured it, then checkpoint t+1 replaces checkpoint t.
A resumed run therefore drops the rows from its checkpoint's round on, and repeats that exchange. What is
known of row t before it is measured (failures, seconds, bytes) travels in the checkpoint.
"""

import csv
import io
import json
import os
import shutil
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from errno import EDQUOT, EFBIG, EIO, ENOSPC, EROFS
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedbayes import __version__
from fedbayes.protocol.columns import (
    Column,
    client_columns,
    columns_of,
    round_columns,
)
from fedbayes.protocol.files import Lock, append_text, replace_file, take_lock
from fedbayes.protocol.settings import Settings
from server_app import evaluations
from server_app.events import emit
from server_app.stored import (
    FORMAT,
    RunError,
    facts_of_both,
    load_checkpoint,
    read_config,
    read_rows,
)

FRESH = {"resume": False, "resume-with": "*", "data-changed": False}  # what is said to a resumed run alone
RESERVE, RESERVED = ".reserve", 2**17  # a file that makes room for the last word on a full disk; bytes
ROOM = 2**25  # bytes for tables, log and report, beside checkpoints
LOCK_WAIT = 20.0  # seconds that a resumed run waits for the earlier attempt's last process


class RunFolder:
    """The one writer of OUT/RUN, from `open` to `close`."""

    def __init__(self, path: Path, config: dict[str, Any], lock: Lock, durable: bool) -> None:
        self.path = path
        self.config = config
        self._lock = lock
        self._durable = durable
        own = columns_of(config)
        self._rounds = Sheet(path / "rounds.csv", round_columns(own))
        self._clients = Sheet(path / "clients.csv", client_columns(own))

    @classmethod
    def open(
        cls,
        settings: Settings,
        facts: Mapping[str, Any],
        columns: Sequence[Column] = (),
        durable: bool = True,
        changed: Collection[str] = (),
    ) -> "RunFolder":
        """Create the folder of a new run, or take over that of a run to resume.

        `facts` are what hello told (clients, model, classes); a resumed run must find the same ones. `columns` are
        the method's own; a resumed run keeps those that it was started with beside them. `durable`: each round is on
        the disk before the next begins. A simulation's clients do not wait for the disk either (client_app/store.py).
        `changed`: sites whose owners know that they have other data now.
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
                facts = facts_of_both(path, config, settings, facts, changed)
        except BaseException:
            lock.close()
            raise
        config |= {"settings": settings.as_config() | FRESH, **facts}
        own = {column.name: column.as_config() for column in (*columns_of(config), *columns)}
        if own:
            config["columns"] = list(own.values())
        return cls(path, config, lock, durable)

    def require_room(self, size: int) -> None:
        """RunError where the disk has no room for checkpoints of so many bytes: two at a time, and what else comes."""
        free, needed = shutil.disk_usage(self.path).free, 2 * size + ROOM
        if free < needed:
            raise RunError(
                f"The disk of {self.path} has {free / 2**20:.0f} MB left, and this run takes {needed / 2**20:.0f} MB; "
                "make room, or choose another out-dir."
            )
        replace_file(self.path / RESERVE, bytes(RESERVED), durable=False)

    def trouble(self, error: BaseException) -> RunError | None:
        """What the disk refused, as a sentence; None for other errors."""
        if not isinstance(error, OSError) or error.errno not in (ENOSPC, EDQUOT, EROFS, EIO, EFBIG):
            return None
        return RunError(
            f"{self.path} cannot be written: {os.strerror(error.errno)}. What was saved before is whole; make room, "
            f"and resume the run (--resume {self.path.name})."
        )

    def begin(self, first_round: int) -> None:
        """Write what is known now, and drop the rows that the rounds to come will write (again)."""
        for key in ("failures", "stopped_early"):  # how an earlier attempt ended
            self.config.pop(key, None)
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
            evaluations.append_evaluation(self.path, row["round"], evidence, self._durable)
        self._clients.append(clients, self._durable)
        self._rounds.append([row], self._durable)

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
        replace_file(self.path / "checkpoint.safetensors", save(contiguous, metadata), self._durable)

    def load_checkpoint(self) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Round, tensors and memory of the last completed round; None before the first."""
        return load_checkpoint(self.path)

    def set_state(self, state: str, message: str = "") -> None:
        """running, finished, failed or stopped, with the reason in words."""
        self.config |= {"state": state, "message": message}
        content = json.dumps(self.config, indent=2).encode()
        try:
            replace_file(self.path / "config.json", content)
        except OSError:
            if not (self.path / RESERVE).exists():
                raise
            (self.path / RESERVE).unlink()  # a full disk: this is what it is for
            replace_file(self.path / "config.json", content)

    def add_site(self, name: str, sizes: Mapping[str, int]) -> None:
        """One that has come while the run is under way."""
        self.config["sites"] = {**self.config["sites"], name: dict(sizes)}
        self.set_state(self.config["state"])

    def close(self) -> None:
        with suppress(OSError):
            (self.path / RESERVE).unlink(missing_ok=True)
        self._lock.close()


class Sheet:
    """One of the tables, with its columns."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self.file = file
        self.columns = columns
        self._left_out: set[str] = set()  # columns that nobody declared, and that were warned of

    def begin(self, before: int) -> None:
        """Keep the rows of the rounds before this one, under the columns of this run."""
        kept = [row for row in read_rows(self.file) if int(row["round"]) < before]
        replace_file(self.file, self._text(kept, header=True).encode(), durable=False)

    def append(self, rows: Sequence[Mapping[str, Any]], durable: bool = True) -> None:
        """Further rows."""
        append_text(self.file, self._text(rows), durable)

    def _text(self, rows: Sequence[Mapping[str, Any]], header: bool = False) -> str:
        """Rows as CSV. A column that nobody declared is left out with a warning: it is no reason to end a run."""
        for column in sorted({key for row in rows for key in row}.difference(self.columns, self._left_out)):
            self._left_out.add(column)
            emit(
                "warning",
                message=f'{self.file.name} has no column "{column}", which the method reported: it is left out. '
                "Declare it among the method's columns.",
            )
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, self.columns, restval="", extrasaction="ignore")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()


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


def _take_lock(path: Path) -> Lock:
    """The writer's lock."""
    busy = RunError(f"Another process is writing the run in {path}.")
    try:
        return take_lock(path / ".writer.lock", LOCK_WAIT, busy)
    except OSError as error:
        raise RunError(f"{path} cannot be locked: {error.strerror}.") from None
