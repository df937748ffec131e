"""Structured log lines: how a run tells the `fedbayes` command, here or far away, what happens.

A line is `FEDBAYES {json}` on standard output, which Flower carries to whoever streams the run's log.
Events: start, round, evaluated, warning, error, finished.
"""

import json
from typing import Any

PREFIX = "FEDBAYES "


def emit(event: str, **fields: Any) -> None:
    print(PREFIX + json.dumps({"event": event, **fields}), flush=True)


def parse(line: str) -> dict[str, Any] | None:
    """The event in a line of log, or None."""
    start = line.find(PREFIX + "{")
    if start < 0:
        return None
    try:
        event: dict[str, Any] = json.loads(line[start + len(PREFIX) :])
    except json.JSONDecodeError:
        return None
    return event
