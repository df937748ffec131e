"""What the command itself reads and writes in a run folder: its lock, the state, the saved rounds.

lock.json says which command runs this run, and with which marker. Its owner may die without removing it;
whoever comes next finds that out and ends what the dead one left running. (The ServerApp holds a lock of its
own on .writer.lock: two writers are impossible even when two commands are not.)
"""

import json
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from safetensors import SafetensorError, safe_open

from fedbayes.errors import CommandError
from fedbayes.launch.processes import MARKER_BYTES, end_all, is_alive
from fedbayes.protocol.files import is_locked, locked, replace_file
from fedbayes.protocol.files import take_lock as take_writers_lock
from fedbayes.protocol.json_text import parse_json

LOCK = "lock.json"
WORKSHOP = ".flower"  # what only Flower's own simulation needs, while it runs
KILLED = "Its processes ended without a word; --resume goes on from what is saved."
LOCK_WAIT = 30.0  # seconds for another command to judge and replace a lock
# A lock may come from anyone: nothing else is used.
MARKER_FORM = re.compile(rf"[0-9a-f]{{{2 * MARKER_BYTES}}}")


def take_lock(folder: Path, marker: str) -> str | None:
    """Make this process the one that runs the run; returns a note when an earlier one had left processes."""
    # One command at a time in the few lines that judge and replace a lock.
    with locked(folder, LOCK_WAIT, CommandError(f"Another command is starting run {folder.name}.")):
        note = _clear_stale_lock(folder)
        content = {"pid": os.getpid(), "created": psutil.Process().create_time(), "marker": marker}
        replace_file(
            folder / LOCK, json.dumps(content).encode(), durable=False
        )  # of no use after a power cut
    return note


def owns_lock(folder: Path, marker: str) -> bool:
    return bool(_read_lock(folder).get("marker") == marker)


def release_lock(folder: Path, marker: str) -> None:
    """Remove the lock, if it is ours."""
    if owns_lock(folder, marker):
        (folder / LOCK).unlink(missing_ok=True)


def _read_lock(folder: Path) -> dict[str, Any]:
    try:
        content = parse_json((folder / LOCK).read_text("utf-8"))
        return content if isinstance(content, dict) else {}
    except (OSError, ValueError):
        return {}


def owner(folder: Path) -> int | None:
    """The process that runs this run now, or None."""
    lock = _read_lock(folder)
    try:
        return int(lock["pid"]) if is_alive(int(lock["pid"]), float(lock["created"])) else None
    except (KeyError, TypeError, ValueError):
        return None


def _clear_stale_lock(folder: Path) -> str | None:
    if (pid := owner(folder)) is not None:
        raise CommandError(f"Run {folder.name} is being run by process {pid}.")
    lock = _read_lock(folder)
    marker = str(lock.get("marker"))
    ended = end_all(marker) if MARKER_FORM.fullmatch(marker) else 0
    (folder / LOCK).unlink(missing_ok=True)
    shutil.rmtree(folder / WORKSHOP, ignore_errors=True)  # of one that was killed
    if ended:
        return f"Ended {ended} process{'es' if ended > 1 else ''} that an earlier attempt had left running."
    return None


def is_held(folder: Path) -> bool:
    """Whether someone is at work in the folder: a living command, or a ServerApp with the writer's lock."""
    return owner(folder) is not None or is_locked(folder / ".writer.lock")


def saved_rounds(folder: Path) -> int:
    """How many rounds the checkpoint holds, from its header alone: it may be large. 0 before round 1."""
    file = folder / "checkpoint.safetensors"
    if not file.exists():
        return 0
    try:
        with safe_open(file, framework="numpy") as stored:
            return max(0, int((stored.metadata() or {})["round"]))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CommandError(f"{file} is damaged ({error}).") from None


def correct_state(folder: Path) -> None:
    """Say in config.json that a run was killed, which could not say so itself, where nobody is at work on it."""
    from server_app.stored import RunError, read_config

    if is_held(folder):
        return
    with suppress(OSError, RunError, CommandError):  # it is not ours to write, or somebody takes it up now
        lock = take_writers_lock(folder / ".writer.lock", 0.0, CommandError("It is being written."))
        try:
            if owner(folder) is None and (read_config(folder) or {}).get("state") == "running":
                set_state(folder, "interrupted", KILLED)
        finally:
            lock.close()


def set_state(folder: Path, state: str, message: str = "", unless: Collection[str] = ()) -> None:
    """Say in config.json how the run ended, `unless` its ServerApp has already said one of these."""
    from server_app.stored import read_config

    config = read_config(folder)
    if config is not None and config.get("state") not in unless:
        config |= {"state": state, "message": message}
        replace_file(folder / "config.json", json.dumps(config, indent=2).encode())
