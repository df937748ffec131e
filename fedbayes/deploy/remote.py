"""`fedbayes run --on NAME`: one run on a federation, followed by its log; the run folder is at the coordinator.

Everything goes through Flower's own commands (run, log, list, stop), which know the federation by its name.
"""

import json
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console

from fedbayes.cli.progress import RunProgress
from fedbayes.cli.tables import run_table
from fedbayes.deploy import renewal
from fedbayes.deploy.connections import keys_of
from fedbayes.deploy.packing import sign_app
from fedbayes.errors import CommandError, printable
from fedbayes.launch.app_bundle import assemble, write_run_config
from fedbayes.launch.flower import ANSI, environment, program
from fedbayes.launch.plan import RemotePlan, further_defaults
from fedbayes.launch.simulate import (
    FAILED,
    FINISHED,
    STOPPED,
    RunStatus,
    Stopped,
    StopSignals,
    complain,
    explanation,
    say,
)
from server_app.rows import counted, duration

SILENCE = 60.0  # seconds without a line of log after which one asks whether the coordinator is still there
PATIENCE = 60.0  # seconds that a coordinator may be away before the command gives up
PAUSE = 2.0
LONGEST = 500  # characters of Flower's words on how a run ended
# Flower's words where nobody listens at the control port (yet)
ABSENT = re.compile(
    r"connection refused|connect(ion)? (error|failed)|failed to connect|unavailable", re.IGNORECASE
)

UNKNOWN = re.compile(r"run( id)?\b.* (not found|does not exist)", re.IGNORECASE)


class Remote:
    """One run at a federation, by its number there."""

    def __init__(self, plan: RemotePlan) -> None:
        self.plan = plan
        self.number = ""
        self.details = ""  # Flower's words on how the run ended, where it has some
        self._seen = 0  # lines of log
        self._log: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with tempfile.TemporaryDirectory(prefix="fedbayes-") as workshop:
            app = assemble(Path(workshop) / "app", further_defaults(self.plan.settings))
            sign_app(app, keys_of(self.plan.on))
            config = write_run_config(Path(workshop) / "run.toml", self.plan.settings.as_config())
            deadline = time.monotonic() + PATIENCE
            while True:
                answer = self._ask("run", str(app), self.plan.on, "-c", str(config))
                if not ABSENT.search(_words(answer)) or time.monotonic() > deadline:
                    break
                time.sleep(PAUSE)  # it may only just have been started
        if not answer.get("run-id"):
            raise CommandError(f"The federation {self.plan.on} did not take the run: {_words(answer)}")
        self.number = str(answer["run-id"])

    def lines(self) -> Iterator[str]:
        """The run's log to its end, each line once, also when the connection breaks in between."""
        lost = 0.0
        while True:
            for count, line in enumerate(self._stream(), 1):
                if count > self._seen:
                    self._seen, lost = count, 0.0
                    yield line
            status = self.status()
            if status.startswith("finished"):
                return
            if status:
                lost = 0.0
            elif not lost:
                lost = time.monotonic()
            elif time.monotonic() - lost > PATIENCE:
                raise CommandError(
                    f"The coordinator of {self.plan.on} has not answered for {PATIENCE:.0f} s; the run may go on."
                )
            time.sleep(PAUSE)

    def status(self) -> str:
        """Flower's word, such as running or finished:failed; empty when nobody answers."""
        answer = self._ask("list", self.plan.on, "--run-id", self.number)
        run = (answer.get("runs") or [{}])[0]
        if UNKNOWN.search(_words(answer)):  # it has only what is in run folders
            run = {"status": "finished:failed", "status-details": "the coordinator was started anew"}
        self.details = " ".join(printable(str(run.get("status-details") or "")).split())[:LONGEST]
        return str(run.get("status", ""))

    def stop(self) -> bool:
        """Ask the coordinator to end the run; whether it will."""
        self.close()
        return bool(self._ask("stop", self.number, self.plan.on).get("success"))

    def close(self) -> None:
        if self._log is not None:
            self._log.kill()
            self._log.wait()

    def _stream(self) -> Iterator[str]:
        """`flwr log` from the beginning; ends with the run, or when the coordinator is gone."""
        command = [str(program("flwr")), "log", self.number, self.plan.on]
        self._log = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment(), start_new_session=True,
        )  # fmt: skip
        assert self._log.stdout is not None
        pipe, rest = self._log.stdout.fileno(), b""
        while True:
            if not select.select([pipe], [], [], SILENCE)[0]:
                if self.status():
                    continue
                break
            data = os.read(pipe, 65536)
            *lines, rest = (rest + data).split(b"\n")
            yield from (ANSI.sub("", line.decode("utf-8", "replace")) for line in lines)
            if not data:
                break
        self.close()

    @staticmethod
    def _ask(*words: str) -> dict[str, Any]:
        """One of Flower's commands, answered in JSON."""
        try:
            done = subprocess.run(
                [str(program("flwr")), *words, "--format", "json"], stdin=subprocess.DEVNULL, capture_output=True,
                env=environment(), start_new_session=True, text=True, errors="replace", timeout=120,
            )  # fmt: skip
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
            return answer
        except subprocess.TimeoutExpired:
            return {"error-message": "no answer within 120 s"}
        except ValueError:
            return {"error-message": (done.stderr or done.stdout).strip()[-500:]}


class _Told(RunStatus):
    """A story with what the events say of the run folder, which is on another machine."""

    folder = ""
    saved = 0
    rounds = 0
    end: Mapping[str, Any] = MappingProxyType({})

    def hear(self, event: Mapping[str, Any]) -> None:
        super().hear(event)
        match event.get("event"):
            case "start":
                self.folder, self.rounds = str(event["folder"]), int(event["rounds"])
                self.saved = int(event["round"]) - 1
            case "round":
                self.saved = int(event["round"])
            case "finished":
                self.end = event


def run_on(plan: RemotePlan, console: Console) -> int:
    """Run the plan; returns the exit status."""
    if keys := keys_of(plan.on):
        renewal.warn(keys)
    began = time.monotonic()
    remote, told = Remote(plan), _Told()
    status = FAILED
    with StopSignals() as signals:
        try:
            try:
                with RunProgress(console, plan.settings.run_name, plan.event_files, logged=plan) as progress:
                    remote.start()
                    _follow(remote, told, progress)
                ended = remote.status()
                status = FINISHED if told.finished and ended == "finished:completed" else FAILED
                if ended == "finished:stopped":  # by `fedbayes stop`, or by somebody else's Ctrl-C
                    status = STOPPED
                if status == FAILED and not told.error and remote.details:
                    told.error = f"The run failed: {remote.details.rstrip('.')}."
            finally:
                signals.shield()
        except Stopped:
            status = STOPPED
            say(console, "Stopping…")
            if remote.number and remote.stop():
                _follow(remote, told, progress)  # what was saved meanwhile
            else:
                told.error = f"It may be running all the same; see `flwr list {plan.on}`."
        except CommandError as error:
            told.error, told.told = told.error or str(error), True
        finally:
            remote.close()
    _tell(plan, console, told, status, time.monotonic() - began)
    return status


def _follow(remote: Remote, told: _Told, progress: RunProgress) -> None:
    from server_app.events import parse

    for line in remote.lines():
        event = parse(line)
        if event is None:
            told.tail.append(line)
        else:
            told.hear(event)
            progress.show(event)


def _tell(plan: RemotePlan, console: Console, told: _Told, status: int, seconds: float) -> None:
    place = f"{told.folder} at the coordinator of {plan.on}"
    if status == FINISHED:
        end = told.end
        console.print(run_table(plan.settings.run_name, end["rows"], end.get("examples")))
        replies = f"{end['failed']} failed repl{'y' if end['failed'] == 1 else 'ies'}"
        if left_out := int(end.get("left_out", 0)):
            replies = f"{left_out} left out, {replies}"
        size = f"{counted(int(end['rounds']), 'round')}, {counted(int(end['sites']), 'site')}"
        say(console, f"{size}, {replies}, {duration(seconds)}")
        say(console, f"Run folder:   {place}")
        if plan.event_files:
            say(console, f"TensorBoard:  {plan.event_files}")
        say(console, f"Train longer: {plan.resume_command} rounds={2 * int(end['rounds'])}")
        return
    kept = [f"At least {told.saved} of {told.rounds} rounds are saved in {place}."] if told.folder else []
    kept += [f"Resume with:  {plan.resume_command}"] if told.folder else []
    if status == STOPPED:
        for line in ("Stopped.", *([told.error] if told.error else []), *kept):
            say(console, line)
    else:
        complain(told.error or "The run failed.", *([] if told.told else explanation(told)), *kept)


def _words(answer: Mapping[str, Any]) -> str:
    return " ".join(str(answer.get("error-message") or "no reason was given").split())
