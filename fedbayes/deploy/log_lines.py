"""`--log-format json`: every line that a coordinator or a site writes, as one JSON object on a line.

The lines come from several programs (Flower, its web server, the runs' events, ours) and from processes that come and
go; so they are made at the one place that all of them go through, the pipe to which standard output is turned.
"""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

from fedbayes.launch.flower import ANSI
from server_app.events import parse

FLOWER = re.compile(r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL) *: *(.*)$")
SERVER = re.compile(r"^\S+Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) \[([\w.]+)\] (.*)$")


def as_json(line: str) -> dict[str, Any] | None:
    """Time, level, source and message; of a run's event also all that it says. None for an empty line."""
    text = ANSI.sub("", line).strip()
    if not text:
        return None
    found: dict[str, Any] = {"time": round(time.time(), 3), "level": "info", "source": "fedbayes"}
    if (event := parse(text)) is not None:
        level = {"warning": "warning", "error": "error"}.get(str(event.get("event")), "info")
        return found | {"level": level, "source": "run"} | event
    if match := SERVER.match(text):
        return found | {"level": match[1].lower(), "source": match[2], "message": match[3]}
    if match := FLOWER.match(text):
        if not match[2]:
            return None
        return found | {"level": match[1].lower(), "source": "flower", "message": match[2]}
    return found | {"message": text}


def rewrite(lines: Iterable[str], out: TextIO) -> None:
    for line in lines:
        if (found := as_json(line)) is not None:
            out.write(json.dumps(found) + "\n")
            out.flush()


def turn_output() -> None:
    """From now on what this process and its children write goes through `rewrite`, in a process that outlives them."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # it ends when nobody can write any more
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            rewrite(lines, sys.stdout)
        os._exit(0)
    os.close(reading)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(writing, stream.fileno())
    os.close(writing)
