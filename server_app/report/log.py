"""The end of a run's log.txt for a reader: events in words, everything else as it is."""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedbayes.protocol.columns import HEADLINES, MODELS
from server_app.events import parse

FILE = "log.txt"
LINES, BYTES = 200, 256_000  # at most
WIDTH = 400  # characters of a line
UNSEEN = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)  # colours, and what a page cannot show


def tail(folder: Path, lines: int = LINES) -> list[str]:
    """The last lines of the run's log; none where there is no log (any more)."""
    try:
        with (folder / FILE).open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - BYTES))
            text = stream.read(BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    whole = text.splitlines()[1 if size > BYTES else 0 :]  # the first is the rest of one
    return [_shown(line) for line in whole if line.strip()][-lines:]


def _shown(line: str) -> str:
    event = parse(line)
    words = in_words(event) if isinstance(event, dict) else None
    plain = UNSEEN.sub("", line if words is None else words)
    return plain if len(plain) <= WIDTH else f"{plain[: WIDTH - 1]}…"


def in_words(event: Mapping[str, Any]) -> str | None:
    """One event of a run as a sentence; None for what is none."""
    told = event.get
    match told("event"):
        case "start":
            words = f"start with round {told('round')} of {told('rounds')}, {told('sites')} sites, {told('method')}"
        case "round":
            words = f"round {told('round')}: {told('clients_ok')} replies, {told('clients_failed')} failed"
            words += f", {told('seconds')} s"
        case "evaluated":
            words = f"after round {told('round')}: {_scores(event) or 'nothing could be measured'}"
        case "warning" | "error" | "note" | "clusters" as kind:
            words = f"{f'{kind}: ' if kind in ('warning', 'error') else ''}{told('message')}"
        case "finished":
            words = f"finished after {told('rounds')} rounds, {told('failed')} failed replies"
        case _:
            return None
    try:
        return f"{time.strftime('%H:%M:%S', time.localtime(float(event['time'])))}  {words}"
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return words


def _scores(event: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{MODELS[model]} {metric.title} {value:.4g}"
        for metric in HEADLINES
        for model in MODELS
        if isinstance(value := event.get(f"{model}_{metric.key}"), int | float)
    )
