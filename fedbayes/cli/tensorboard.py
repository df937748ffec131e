"""`--tensorboard`: a run's figures as TensorBoard event files in OUT/RUN/tensorboard, while it runs.

Written by the command from the run's events, so a federation elsewhere needs no TensorBoard.
"""

from pathlib import Path
from typing import Any

from fedbayes.errors import CommandError
from fedbayes.loggers.figures import figures_of


def require_tensorboard() -> None:
    """A sentence, before anything is started, where the package is not installed."""
    try:
        import tensorboard.summary.writer.event_file_writer  # noqa: F401
    except ImportError:
        raise CommandError(
            "--tensorboard needs the package tensorboard; install it with `pip install tensorboard`."
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
                # A resumed run writes these rounds again: TensorBoard drops what earlier files say of them.
                self._open(purge_step=int(event["round"]) - 1)
            case _:
                for tag, value in figures_of(event).items():
                    if self._writer is None:
                        self._open(purge_step=None)
                    self._writer.add_scalar(tag, value, int(event["round"]))

    def _open(self, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter  # torch takes seconds to import

        self.close()
        self._writer = SummaryWriter(str(self._folder), purge_step=purge_step, flush_secs=5)
