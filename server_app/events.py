"""Structured log lines: how a run tells the `fedbayes` command, here or far away, what happens.

A line is `FEDBAYES {json}` on standard output, which Flower carries to whoever streams the run's log.
Events: sites, joined, start, clusters, note, round, evaluated, warning, error, finished; each with its time, in seconds
since 1970.
"""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedbayes.protocol.files import append_text

PREFIX = "FEDBAYES "
_copies: list[Path] = []


def emit(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, "time": round(time.time(), 3), **fields})
    sys.stdout.write(f"{PREFIX}{line}\n")  # one write: lines stay whole
    sys.stdout.flush()
    for file in _copies:
        with suppress(OSError):  # a copy is no reason to end a run
            append_text(file, f"{PREFIX}{line}\n", durable=False)


@contextmanager
def copied(file: Path) -> Iterator[None]:
    """A copy of all events goes into this file, for those who are at the run folder and not at the log."""
    _copies.append(file)
    try:
        yield
    finally:
        _copies.remove(file)


def parse(line: str) -> dict[str, Any] | None:
    """The event in a line of log, or None."""
    start = line.find(PREFIX + "{")
    if start < 0:
        return None
    try:
        event: dict[str, Any] = json.JSONDecoder().raw_decode(line[start + len(PREFIX) :])[0]
    except json.JSONDecodeError:
        return None
    return event
