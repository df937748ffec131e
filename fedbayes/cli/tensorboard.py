"""`--tensorboard`: a run's figures as TensorBoard event files in OUT/RUN/tensorboard, while it runs.

Written by the command from the run's events, so a federation elsewhere needs no TensorBoard.
"""

import time
from pathlib import Path
from typing import Any

from fedbayes.errors import CommandError

MODELS = {"pm": "personal", "gm": "global"}
OF_A_ROUND = (
    "seconds",
    "bytes_up",
    "bytes_down",
    "clients_ok",
    "clients_failed",
    "clusters",
    "cluster_changes",
)


def require_tensorboard() -> None:
    """A sentence, before anything is started, where the package is not installed."""
    try:
        import tensorboard.summary.writer.event_file_writer  # noqa: F401
    except ImportError:
        raise CommandError(
            "--tensorboard needs the package tensorboard; install it with `pip install 'fedbayes[tensorboard]'`."
        ) from None


class EventFiles:
    """Turns the run's events into scalars: accuracy/personal, accuracy/global, round/seconds and so on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None  # made by the first event: a run that never starts leaves nothing

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def show(self, event: dict[str, Any]) -> None:
        """Write what one event tells; others than these have no figures."""
        match event.get("event"):
            case "start":
                self._forget_since(int(event["round"]) - 1)
            case "round":
                self._write(event, {name: f"round/{name}" for name in OF_A_ROUND})
            case "evaluated":
                metrics = [name.partition("_") for name in event if name.partition("_")[0] in MODELS]
                tags = {f"{model}_{metric}": f"{metric}/{MODELS[model]}" for model, _, metric in metrics}
                self._write(event, tags)

    def _write(self, event: dict[str, Any], tags: dict[str, str]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=tag, simple_value=float(event[name]))
            for name, tag in tags.items()
            if isinstance(event.get(name), int | float)
        ]
        if values:
            summary = Summary(value=values)
            self._add(Event(wall_time=time.time(), step=int(event["round"]), summary=summary))

    def _forget_since(self, step: int) -> None:
        """A resumed run writes these rounds again: TensorBoard drops what earlier files say of them."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        log = SessionLog(status=SessionLog.START)
        self._add(Event(wall_time=time.time(), step=step, session_log=log))

    def _add(self, event: Any) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder), flush_secs=5)
        self._writer.add_event(event)
