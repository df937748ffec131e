"""What the command itself reads and writes in a run folder: its lock, the state, the saved rounds.

lock.json says which command runs this run, and with which marker. Its owner may die without removing it;
whoever comes next finds that out and ends what the dead one left running. (The ServerApp holds a lock of its
own on .writer.lock: two writers are impossible even when two commands are not.)
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from safetensors import SafetensorError, safe_open

from fedbayes.errors import CommandError
from fedbayes.launch.processes import MARKER_BYTES, end_all, is_alive

LOCK = "lock.json"
MARKER_FORM = re.compile(
    rf"[0-9a-f]{{{2 * MARKER_BYTES}}}"
)  # a lock may come from anyone: nothing else is used


def take_lock(folder: Path, marker: str) -> str | None:
    """Make this process the one that runs the run; returns a note when an earlier one had left processes."""
    with _alone(folder):
        note = _clear_stale_lock(folder)
        content = {"pid": os.getpid(), "created": psutil.Process().create_time(), "marker": marker}
        # Not server_app.runs.replace_file: a lock need not survive a power cut, and this module stays light.
        unfinished = folder / f".{LOCK}.tmp"
        unfinished.write_text(json.dumps(content), "utf-8")
        unfinished.replace(folder / LOCK)
    return note


def owns_lock(folder: Path, marker: str) -> bool:
    return bool(_read_lock(folder).get("marker") == marker)


def release_lock(folder: Path, marker: str) -> None:
    """Remove the lock, if it is ours."""
    if owns_lock(folder, marker):
        (folder / LOCK).unlink(missing_ok=True)


def _read_lock(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / LOCK).read_text("utf-8"))
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
    if ended:
        return f"Ended {ended} process{'es' if ended > 1 else ''} that an earlier attempt had left running."
    return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One command at a time in the few lines that judge and replace a lock."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CommandError(f"Another command is starting run {folder.name}.") from None
                time.sleep(0.1)
        yield
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether someone is at work in the folder: a living command, or a ServerApp with the writer's lock."""
    if owner(folder) is not None:
        return True
    try:
        with (folder / ".writer.lock").open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def saved_rounds(folder: Path) -> int:
    """How many rounds the checkpoint holds, from its header alone: it may be large. 0 without one."""
    file = folder / "checkpoint.safetensors"
    if not file.exists():
        return 0
    try:
        with safe_open(file, framework="numpy") as stored:
            return int((stored.metadata() or {})["round"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise CommandError(f"{file} is damaged ({error}).") from None


def set_state(folder: Path, state: str, message: str = "", unless: Collection[str] = ()) -> None:
    """Say in config.json how the run ended, `unless` its ServerApp has already said one of these."""
    from server_app.runs import read_config, replace_file

    config = read_config(folder)
    if config is not None and config.get("state") not in unless:
        config |= {"state": state, "message": message}
        replace_file(folder / "config.json", json.dumps(config, indent=2).encode())
