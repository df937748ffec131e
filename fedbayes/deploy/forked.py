"""A part of a site as a fork of its watcher, which has imported Flower once for all: they share that memory.

Handled like a subprocess.Popen, as far as the watcher needs it.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence

PDEATHSIG, NAME = 1, 15  # of prctl
PAUSE = 0.05


class Forked:
    """`run` in a process of its own, called `name`, with these words for its command line."""

    def __init__(self, name: str, run: Callable[[], None], words: Sequence[str]) -> None:
        self._status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_be(name, run, words))

    def poll(self) -> int | None:
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(PAUSE)
        return status

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _be(name: str, run: Callable[[], None], words: Sequence[str]) -> int:
    """In the new process; returns its exit status."""
    try:
        end_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        ctypes.CDLL(None).prctl(NAME, name.encode(), 0, 0, 0)  # what `ps` and `top` show, 15 letters of it
        sys.argv = list(words)
        run()
        return 0
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def end_with_parent() -> None:
    """Not even SIGKILL of the watcher leaves the others behind (Linux: PR_SET_PDEATHSIG)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGTERM)
