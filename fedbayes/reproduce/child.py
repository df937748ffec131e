"""One run in a process of its own, so that several go on at once; what it says comes back line by line as JSON."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from fedbayes.errors import CommandError
from fedbayes.launch.engine.children import FORKS, fork, spawn
from fedbayes.launch.plan import Plan
from fedbayes.protocol.settings import Settings

NAME = "fedbayes-cell"
PIECE = 65536
ENDED = "ended"
KILLED = "Its process was killed, or was short of memory."
TOLD = ("start", "round", "evaluated")


class Children:
    """The runs that go on now."""

    def __init__(self) -> None:
        self._runs: dict[str, _Child] = {}

    def start(self, name: str, plan: Plan) -> None:
        self._runs[name] = _Child(plan)

    def hear(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Waits until some run has something to say; its last event is `ended`, with status and error."""
        ready = wait([child.out for child in self._runs.values()])
        for name, child in list(self._runs.items()):
            if child.out in ready:
                for event in child.read():
                    yield name, event
                if child.over:
                    del self._runs[name]

    def stop(self) -> None:
        """Ask all to end; `hear` tells when they have."""
        for child in self._runs.values():
            with suppress(ProcessLookupError):
                os.kill(child.number, signal.SIGINT)


class _Child:
    def __init__(self, plan: Plan) -> None:
        self.out, out = os.pipe()
        arguments = (plan.settings.as_config(), plan.clients, out)
        if FORKS:
            self.number = fork(lambda: main(*arguments), NAME)
            self._wait: Callable[[], object] = lambda: os.waitpid(self.number, 0)
        else:
            process = spawn(__name__, arguments, NAME, pass_fds=(out,))
            self.number, self._wait = process.pid, process.wait
        os.close(out)
        self._pending, self._told, self.over = b"", False, False

    def read(self) -> Iterator[dict[str, Any]]:
        piece = os.read(self.out, PIECE)
        *whole, self._pending = (self._pending + piece).split(b"\n")
        for line in whole:
            event = json.loads(line)
            self._told |= event["event"] == ENDED
            yield event
        if not piece or self._told:  # it has nothing more to say
            os.close(self.out)
            self._wait()
            self.over = True
            if not self._told:
                yield {"event": ENDED, "status": -1, "error": KILLED}


class _Told:
    """A display that passes events on."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say

    def say(self, text: str) -> None: ...

    def show(self, event: dict[str, Any]) -> None:
        if event.get("event") in TOLD:
            self._say(event)

    def __enter__(self) -> "_Told":
        return self

    def __exit__(self, *_: object) -> None: ...


def main(config: dict[str, Any], clients: int, out: int) -> None:
    """What the process does."""
    from fedbayes.launch.engines import EMBEDDED, engine_for
    from fedbayes.launch.simulate import FAILED, conduct

    plan = Plan(Settings.parse(config), clients)

    def say(event: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):
            os.write(out, json.dumps(event, default=str).encode() + b"\n")

    os.set_inheritable(out, False)
    try:
        ended = conduct(plan, engine_for(plan, EMBEDDED), _Told(say))
        status, error, details = ended.status, ended.error, ended.details
    except (CommandError, OSError) as refused:
        status, error, details = FAILED, str(refused), ()
    first = f"{error} {details[-1].strip()}" if error and details else error
    say({"event": ENDED, "status": status, "error": first, "time": time.time()})
