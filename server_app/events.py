"""Structured log lines: how a run tells the `fedbayes` command, here or far away, what happens.

A line is `FEDBAYES {json}` on standard output, which Flower carries to whoever streams the run's log.
Events: start, clusters, note, round, evaluated, warning, error, finished; each with its time, in seconds since 1970.
"""

import json
import sys
import time
from typing import Any

PREFIX = "FEDBAYES "


def emit(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, "time": round(time.time(), 3), **fields})
    sys.stdout.write(f"{PREFIX}{line}\n")  # one write: lines stay whole
    sys.stdout.flush()


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
