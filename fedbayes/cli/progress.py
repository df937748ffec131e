"""What the user sees while a run goes on: a live bar on a terminal or in a notebook, plain lines anywhere else."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from fedbayes.cli.tensorboard import EventFiles
from fedbayes.loggers.worker import Loggers
from fedbayes.protocol.columns import HEADLINES, MODELS


class TimeLeft(ProgressColumn):
    """The time left as soon as it can be guessed, the time passed until then."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        seconds = task.elapsed or 0 if left is None else left
        clock = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"
        return Text(clock if left is None else f"{clock} left", style="dim")


class Logged(Protocol):
    """A plan whose run is to be logged: by whom, its settings, and its folder if that is on this machine."""

    @property
    def log(self) -> Sequence[str]: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def local(self) -> Path | None: ...


class Bar(Protocol):
    """Something that shows how far a run is."""

    def start(self, title: str, status: str) -> None: ...

    def update(self, done: int, rounds: int, scores: str) -> None: ...

    def stop(self) -> None: ...


class TerminalBar:
    """A line that is gone when the run has ended."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[status]}"),
            TimeLeft(),
            console=console,
            transient=True,
        )

    def start(self, title: str, status: str) -> None:
        self._progress.add_task(title, total=None, status=status)
        self._progress.start()

    def update(self, done: int, rounds: int, scores: str) -> None:
        status = f"round {done}/{rounds}  [cyan]{scores}[/]" if scores else f"round {done}/{rounds}"
        task = self._progress.tasks[0].id
        self._progress.update(task, total=rounds, completed=done, status=status)

    def stop(self) -> None:
        self._progress.stop()


def bar_for(console: Console) -> Bar | None:
    if console.is_jupyter:
        from fedbayes.cli.notebook import NotebookBar

        return NotebookBar()
    return TerminalBar(console) if console.is_terminal else None


class RunProgress:
    """Turns the run's events into a display; knows nothing of processes."""

    def __init__(
        self,
        console: Console,
        title: str,
        event_files: Path | None = None,
        starting: str = "starting…",
        logged: "Logged | None" = None,
    ) -> None:
        self._console = console
        self._starting = starting
        self._event_files = EventFiles(event_files) if event_files else None
        self._loggers = Loggers(logged.log, title, logged.config, logged.local, self.say) if logged else None
        self._title = title
        self._rounds = self._done = 0
        self._measured = -1
        self._scores = ""
        self._seconds: list[float] = []
        self._warnings: set[str] = set()
        self._bar = bar_for(console)

    def __enter__(self) -> "RunProgress":
        if self._bar is None:
            self._console.print(f"{self._title}: {self._starting}", highlight=False)
        else:
            self._bar.start(self._title, self._starting)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._event_files is not None:
            self._event_files.close()
        if self._loggers is not None:
            self._loggers.close()

    def show(self, event: dict[str, Any]) -> None:
        """Show one event; those that end a run are told after the display is gone."""
        if self._event_files is not None:
            self._event_files.show(event)
        if self._loggers is not None:
            self._loggers.show(event)
        match event.get("event"):
            case "start":
                self._rounds = int(event["rounds"])
                for line in event.get("about", ()):
                    self.say(str(line))
                self._update(int(event["round"]) - 1)
            case "round":
                self._rounds = int(event["rounds"])
                self._seconds.append(float(event["seconds"]))
                self._update(int(event["round"]))
            case "evaluated":
                self._evaluated(event)
            case "warning":
                self.warn(str(event["message"]))
            case "clusters" | "note":
                self.say(str(event["message"]))

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn(self, message: str) -> None:
        """A yellow line above the bar, once, however often it is said."""
        if message not in self._warnings:
            self._warnings.add(message)
            self._console.print(
                f"warning: {message}", style="yellow", markup=False, highlight=False, soft_wrap=True
            )

    def _evaluated(self, event: dict[str, Any]) -> None:
        self._scores = "  ".join(
            f"{model.upper()} {value:.3f}" if metric.share else f"{model.upper()} {metric.title} {value:.4g}"
            for metric in HEADLINES
            for model in MODELS
            if (value := event.get(f"{model}_{metric.key}")) is not None
        )
        if self._bar is not None:
            self._update(self._done)
        elif int(event["round"]) > self._measured:
            self._measured = int(event["round"])
            pace = f"  {sum(self._seconds) / len(self._seconds):.2f} s/round" if self._seconds else ""
            self._seconds.clear()
            line = f"round {event['round']}/{self._rounds}  {self._scores}{pace}"
            self._console.print(line, highlight=False, soft_wrap=True)

    def _update(self, done: int) -> None:
        self._done = done
        if self._bar is not None:
            self._bar.update(done, self._rounds, self._scores)
