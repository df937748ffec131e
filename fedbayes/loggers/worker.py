"""Loggers at work beside a run: one thread each, so that a slow or absent server never holds up the run.

What cannot be logged is counted, and said once; the run itself does not know of it.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fedbayes.loggers.figures import figures_of

CLOSING = 60.0  # seconds for a logger to write what is left when the run has ended
FILES = ("report.html", "rounds.csv", "clients.csv")
STATES = {"finished": "finished", "error": "failed"}  # what an event says of the end


@dataclass(frozen=True)
class About:
    """A run, as a logger gets to know it."""

    name: str
    uuid: str  # the same when the run goes on
    settings: Mapping[str, Any]
    folder: Path | None  # None where it is on another machine


class Logger(Protocol):
    """One place where runs are kept."""

    def start(self, about: About) -> str:
        """Begin, or go on with the run of this uuid; gives where it can be seen."""
        ...

    def log(self, figures: Mapping[str, float], step: int) -> None: ...

    def finish(self, state: str, files: Sequence[Path]) -> None: ...


class Worker:
    """One logger, its thread, and what it could not log."""

    def __init__(self, name: str, about: About, say: Callable[[str], None]) -> None:
        self.name = name
        self.failed = self.done = 0
        self._logger: Logger | None = None
        self._say = say
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._work.put(lambda: self._begin(about))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._work.put(lambda: self._begun().log(figures, step))

    def finish(self, state: str, files: Sequence[Path]) -> None:
        self._work.put(lambda: self._begun().finish(state, files))

    def close(self) -> None:
        """Wait for what is left; whatever a logger has not taken by then counts as not logged."""
        self._work.put(None)
        self._thread.join(CLOSING)
        left = self._work.qsize() if self._thread.is_alive() else 0
        if self.failed + left:
            total = self.failed + left + self.done
            self._say(f"{self.name}: {self.failed + left} of {total} records could not be logged.")

    def _begin(self, about: About) -> None:
        logger: Logger = import_module(f"fedbayes.loggers.{self.name}_").Logger()
        place = logger.start(about)
        self._logger = logger
        self._say(f"{self.name}: {place}")

    def _begun(self) -> Logger:
        if self._logger is None:
            raise RuntimeError("the run could not be begun there")
        return self._logger

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
                self.done += 1
            except BaseException as error:  # SystemExit too: it is the logger's, not the run's
                self.failed += 1
                if self.failed == 1:
                    reason = " ".join(str(error).split())[:300] or type(error).__name__
                    self._say(f"{self.name} cannot log, and the run goes on without it: {reason}")


class Loggers:
    """All loggers of a run, fed with its events. They begin with the run's first event: before, there is no thread."""

    def __init__(
        self,
        names: Sequence[str],
        run: str,
        settings: Mapping[str, Any],
        folder: Path | None,
        say: Callable[[str], None],
    ) -> None:
        self._names, self._run, self._settings = tuple(names), run, settings
        self._folder, self._say = folder, say
        self._workers: list[Worker] = []
        self._state = "stopped"

    def show(self, event: Mapping[str, Any]) -> None:
        """Pass on what one event tells."""
        kind = event.get("event")
        if kind == "start":
            settings = dict(self._settings) | {"sites": event.get("sites")}
            about = About(self._run, str(event.get("uuid")), settings, self._folder)
            self._workers = [Worker(name, about, self._say) for name in self._names]
        elif figures := figures_of(event):
            for worker in self._workers:
                worker.log(figures, int(event["round"]))
        self._state = STATES.get(str(kind), self._state)

    def close(self) -> None:
        """The end of the run: its state, and the files that are there."""
        files = [file for name in FILES if self._folder and (file := self._folder / name).exists()]
        for worker in self._workers:
            worker.finish(self._state, files)
        for worker in self._workers:
            worker.close()
