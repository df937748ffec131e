"""One run on this machine, from its lock to its closing table."""

import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from rich.console import Console

from fedbayes.cli.progress import RunProgress
from fedbayes.cli.tables import run_table
from fedbayes.errors import CommandError
from fedbayes.launch.engines import EMBEDDED, Engine, engine_for
from fedbayes.launch.plan import Plan
from fedbayes.launch.ready import ready
from fedbayes.launch.run_folder import owns_lock, release_lock, saved_rounds, set_state, take_lock
from server_app.rows import counted, duration, examples_of, number

FINISHED, FAILED, STOPPED = 0, 1, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CHATTER = ("INFO", "WARNING", "Using SuperLink", "Successfully", "===")  # how Flower's lines of no news begin
TAIL = 12  # lines of log that explain a failure without a sentence of its own


class Stopped(BaseException):
    """Ctrl-C, or another signal that asks the command to end."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


class StopSignals:
    """The first signal raises Stopped; from then on, or from `shield` on, cleaning up is not disturbed."""

    def __enter__(self) -> "StopSignals":
        ours = threading.current_thread() is threading.main_thread()  # else they are another's business
        self._before = {each: signal.getsignal(each) for each in SIGNALS if ours}
        for each, handler in self._before.items():
            if each != signal.SIGHUP or handler != signal.SIG_IGN:  # nohup's wish is kept
                signal.signal(each, self._stop)
        return self

    def shield(self) -> None:
        for each in self._before:
            signal.signal(each, signal.SIG_IGN)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self.shield()
        raise Stopped(number)

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)


@dataclass
class RunStatus:
    """What a run has told so far."""

    finished: bool = False
    error: str = ""
    told: bool = False  # the error is the run's own sentence, which needs no log beside it
    kept: bool = False  # the run has begun: its folder stays
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=200))

    def hear(self, event: Mapping[str, Any]) -> None:
        self.finished |= event.get("event") == "finished"
        if event.get("event") == "error":
            self.error, self.told = str(event.get("message")), True


class Display(Protocol):
    """Who watches a run: `fedbayes.cli.progress` on a terminal."""

    def say(self, text: str) -> None: ...

    def show(self, event: dict[str, Any]) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...


class Unseen:
    """Nobody watches."""

    def say(self, text: str) -> None: ...

    def show(self, event: dict[str, Any]) -> None: ...

    def __enter__(self) -> "Unseen":
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Ended:
    """How a run ended, and what is to be said of it."""

    status: int
    seconds: float
    error: str = ""
    details: tuple[str, ...] = ()  # lines of log, where the error is no sentence of the run's own
    kept: bool = False  # its folder is there
    signal: int = 0  # by which it was stopped


def simulate(plan: Plan, console: Console, engine: str = EMBEDDED, address: str | None = None) -> int:
    """Run the plan and tell the user of it; returns the exit status. Nothing of it is running when this returns."""
    carrier = engine_for(plan, engine, address)
    display = RunProgress(console, plan.settings.run_name, plan.event_files, carrier.starting, plan)
    ended = conduct(plan, carrier, display)
    _tell(plan, console, ended)
    return ended.status


def train(
    words: Mapping[str, Any],
    clients: int | None = None,
    resume: str | None = None,
    engine: str = EMBEDDED,
    address: str | None = None,
    tensorboard: bool = False,
    log: Sequence[str] = (),
    watched_by: Callable[[Plan, Engine], Display] = lambda _plan, _engine: Unseen(),
) -> tuple[Plan, Ended]:
    """A whole run from its settings, without a word to the user; returns when it has ended.

    CommandError, SettingsError or RunError where it cannot even start; how it ended is in what is returned.
    """
    plan = replace(ready(words, clients, resume), tensorboard=tensorboard, log=tuple(log))
    carrier = engine_for(plan, engine, address)
    return plan, conduct(plan, carrier, watched_by(plan, carrier))


def conduct(plan: Plan, engine: Engine, display: Display) -> Ended:
    """Run the plan. Ctrl-C ends it well; nothing of it is running when this returns."""
    began = time.monotonic()
    new_files = [path for name in ("log.txt", ".writer.lock") if not (path := plan.folder / name).exists()]
    new_folders = [path for path in (plan.folder, *plan.folder.parents) if not path.exists()]
    story = RunStatus()
    status, number = FAILED, 0
    with StopSignals() as signals:
        try:
            try:
                _follow(plan, engine, display, story)
                status = FINISHED if story.finished and not engine.says_failed() else FAILED
            finally:
                signals.shield()
        except Stopped as stopped:
            status, number = STOPPED, stopped.number
            display.say("Stopping…")
        except SystemExit:  # rich ends the command when nobody reads its output any more
            status = STOPPED
            raise
        except CommandError as error:
            if not owns_lock(plan.folder, engine.marker):
                raise  # refused: the folder is someone else's
            story.error = story.error or str(error)
        finally:
            engine.end()
            if owned := owns_lock(plan.folder, engine.marker):
                _settle(plan, story, status)
                release_lock(plan.folder, engine.marker)
            if not story.kept:
                _remove(new_files if owned else (), new_folders)
    seconds = time.monotonic() - began
    if status != FAILED:
        return Ended(status, seconds, kept=story.kept, signal=number)
    details = () if story.told else explanation(story)
    return Ended(status, seconds, story.error or "The run failed.", tuple(details), story.kept)


def _follow(plan: Plan, engine: Engine, display: Display, story: RunStatus) -> None:
    from server_app.events import parse

    try:
        plan.folder.mkdir(parents=True, exist_ok=True)
        note = take_lock(plan.folder, engine.marker)
    except OSError as error:
        raise CommandError(f"The run folder {plan.folder} cannot be written: {error.strerror}.") from None
    if note:
        display.say(note)
    engine.start()  # before there is a display with threads: it may copy this process
    with display:
        for line in engine.lines():
            event = parse(line)
            if event is None:
                story.tail.append(line)
                continue
            story.hear(event)
            display.show(event)


def _settle(plan: Plan, story: RunStatus, status: int) -> None:
    """A true state in config.json, whatever the ServerApp could still say; and what the log has to say."""
    story.kept = (plan.folder / "config.json").exists()
    if not story.tail and (log := plan.folder / "log.txt").exists():
        story.tail.extend(log.read_text("utf-8", "replace").splitlines()[-200:])
    if status == STOPPED:
        set_state(plan.folder, "stopped", unless=("finished",))
    elif status == FAILED:
        set_state(plan.folder, "failed", story.error, unless=("finished", "failed"))
    if status != FINISHED and story.kept:
        _report(plan.folder)


def _report(folder: Path) -> None:
    """What there is to show of a run whose ServerApp could not say so itself; never a reason to fail."""
    from server_app.report import write_report

    try:
        write_report(folder)
    except Exception as error:
        complain(f"The report could not be written: {error}")


def _tell(plan: Plan, console: Console, ended: Ended) -> None:
    if ended.status == FINISHED:
        _tell_result(plan, console, ended.seconds)
        return
    saved = saved_rounds(plan.folder)
    rounds = f"{saved} of {plan.settings.rounds} rounds are saved in {shown(plan.folder)}."
    resume = f"Resume with:  {plan.resume_command}"
    if ended.status == STOPPED and ended.kept:
        say(console, f"Stopped. {rounds if saved else 'No round was saved yet.'}")
        say(console, resume)
    elif ended.status == STOPPED:
        say(console, "Stopped before the run began; nothing was saved.")
    else:
        where = (f"{rounds} The log is {shown(plan.folder / 'log.txt')}.", resume) if ended.kept else ()
        complain(ended.error, *ended.details, *where)


def _tell_result(plan: Plan, console: Console, seconds: float) -> None:
    from server_app.stored import read_config, read_rows

    rows = read_rows(plan.folder / "rounds.csv")
    failed = int(sum(number(row, "clients_failed") or 0 for row in rows))
    sites = (read_config(plan.folder) or {}).get("sites")
    examples = examples_of(read_rows(plan.folder / "clients.csv"), sites)
    console.print(run_table(plan.settings.run_name, rows, examples))
    replies = f"{failed} failed repl{'y' if failed == 1 else 'ies'}"
    done = max(
        (int(row["round"]) for row in rows), default=plan.settings.rounds
    )  # fewer where it stopped early
    size = f"{counted(done, 'round')}, {counted(plan.clients, 'client')}"
    say(console, f"{size}, {replies}, {duration(seconds)}")
    say(console, f"Run folder:   {shown(plan.folder)}")
    say(console, f"Report:       {shown(plan.folder / 'report.html')}")
    if plan.event_files:
        say(console, f"TensorBoard:  {shown(plan.event_files)}")
    say(console, f"Train longer: {plan.resume_command} rounds={2 * plan.settings.rounds}")


def explanation(story: RunStatus) -> list[str]:
    """The last lines of log that are not mere progress."""
    told = (line for line in story.tail if line.strip(" ^~") and "[uvicorn." not in line)
    telling = [f"  {line}" for line in told if not line.lstrip().startswith(CHATTER)][-TAIL:]
    return telling or ["  The log gives no reason; a process may have been killed, or been short of memory."]


def _remove(files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Take back what this command made; a folder only when nothing else has come into it."""
    for file in files:
        file.unlink(missing_ok=True)
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def say(console: Console, text: str) -> None:
    """A line that can be copied: never wrapped, never coloured."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def complain(sentence: str, *details: str) -> None:
    print("\n".join((f"fedbayes: {sentence}", *details)), file=sys.stderr)


def shown(path: Path) -> Path:
    """A path as short as it can be from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
