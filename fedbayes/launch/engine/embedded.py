"""A run on the embedded engine, as the command sees it: it starts, it speaks, it ends."""

import gc
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import IO

from fedbayes.launch.engine import server
from fedbayes.launch.engine.children import FORKS, fork, spawn
from fedbayes.launch.plan import Plan
from fedbayes.launch.processes import MARKER_BYTES, end_all

PIECE = 65536
PATIENCE = 10.0  # seconds for killed processes to be gone


class Embedded:
    """The processes of one run; `end` leaves none behind."""

    starting = "starting…"

    def __init__(self, plan: Plan, copy: bool = FORKS, copies: bool = FORKS, address: str = "") -> None:
        """`copy`: the server is a copy of this process; `copies`: workers are copies of it. Else new Pythons.

        With `address` workers are actors of the Ray cluster there.
        """
        self.plan = plan
        self.address = address
        self.marker = secrets.token_hex(MARKER_BYTES)
        self._copy, self._copies = copy, copies
        self._log: IO[str] | None = None
        self._server = 0  # its number, once it has been started
        self._pending = b""

    def start(self) -> None:
        self._log = (self.plan.folder / "log.txt").open("a", encoding="utf-8", errors="replace")
        self._log.write(f"\n=== {time.strftime('%Y-%m-%d %H:%M:%S')} {self.plan.settings.run_name}\n")
        self._out, out = os.pipe()
        self._alive, alive = os.pipe()
        config = self.plan.settings.as_config()
        arguments = (config, self.plan.clients, self.marker, out, alive, self._copies, self.address)
        if self._copy:

            def work() -> None:
                os.close(self._out)
                os.close(self._alive)
                server.main(*arguments)

            self._log.flush()
            # Garbage goes here: what has threads of its own (a session of onnxruntime) would wait for them in a copy.
            gc.collect()
            self._server = fork(work, server.NAME)
            self._wait: Callable[[], int] = lambda: os.waitstatus_to_exitcode(os.waitpid(self._server, 0)[1])
        else:
            process = spawn(server.__name__, arguments, server.NAME, pass_fds=(out, alive))
            self._server, self._wait = process.pid, process.wait
        os.close(out)
        os.close(alive)

    def lines(self) -> Iterator[str]:
        """What the run says, line by line, to its end; all of it goes to log.txt too."""
        while self._out in wait([self._out, self._alive]):  # what is said comes before the end
            piece = os.read(self._out, PIECE)
            if not piece:
                return
            yield from self._lines_in(piece)

    def says_failed(self) -> bool:
        return self._wait() != 0

    def end(self) -> None:
        """End every process of the run; nothing, if it was never started."""
        if not self._server:
            if self._log is not None:
                self._log.close()
            return
        over = self._alive in wait([self._alive], 0)
        if not (over and self._silent(1.0)):
            for kill in (os.killpg, os.kill):  # it may not have made its group yet
                with suppress(ProcessLookupError):
                    kill(self._server, signal.SIGKILL)
        with suppress(ChildProcessError):
            self._wait()
        if not self._silent(PATIENCE):  # somebody else's child, in a session of its own
            end_all(self.marker)
        for descriptor in (self._out, self._alive):
            os.close(descriptor)
        if self._log is not None:
            self._log.close()
        self._server = 0

    def _silent(self, seconds: float) -> bool:
        """Whether all processes that could say something are gone within so many seconds."""
        deadline = time.monotonic() + seconds
        while wait([self._out], max(0.0, deadline - time.monotonic())):
            piece = os.read(self._out, PIECE)
            if not piece:
                return True
            for _ in self._lines_in(piece):
                pass
        return False

    def _lines_in(self, piece: bytes) -> Iterator[str]:
        assert self._log is not None
        *whole, self._pending = (self._pending + piece).split(b"\n")
        for line in whole:
            text = line.decode("utf-8", "replace")
            self._log.write(text + "\n")
            self._log.flush()
            yield text
