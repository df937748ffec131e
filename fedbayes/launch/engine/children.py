"""Processes that end when the one that started them does, be it by SIGKILL."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

FORKS = (
    sys.platform == "linux"
)  # elsewhere a copy of a process that has used the system's libraries may crash
SET_DEATH_SIGNAL, SET_NAME = 1, 15  # of Linux' prctl
LOOK = 0.5  # seconds between looks at whether the parent is there, where the system does not tell
PROGRAM = """
import json, sys
parent, name, sys.path[:], module, arguments = json.load(sys.stdin)
from importlib import import_module
from fedbayes.launch.engine.children import attach
attach(parent, name)
import_module(module).main(*arguments)
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
_libc = ctypes.CDLL(None) if FORKS else None


def fork(work: Callable[[], None], name: str) -> int:
    """A copy of this process that does `work`, and then ends without looking back; its number."""
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else both would write what is still in there
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none is to find the parent's handlers in the child
    number = os.fork()
    if number:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return number
    status = 1
    try:
        attach(parent, name)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def spawn(
    module: str, arguments: Sequence[object], name: str, pass_fds: Sequence[int]
) -> subprocess.Popen[bytes]:
    """A new Python that calls `module.main(*arguments)`, with these open files under the same numbers."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, pass_fds=pass_fds)
    assert process.stdin is not None
    with process.stdin as stream, suppress(BrokenPipeError):  # of one that died at once
        stream.write(json.dumps([os.getpid(), name, sys.path, module, list(arguments)]).encode())
    return process


def attach(parent: int, name: str) -> None:
    """What a process does first: it dies with its parent, and signals mean to it what they mean to any other."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if _libc is not None:
        _libc.prctl(SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
        _libc.prctl(SET_NAME, name.encode(), 0, 0, 0)
    else:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)  # it had died before


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGKILL)


def in_a_thread_of_its_own(work: Callable[[], None]) -> None:
    """Do the work in a new thread, and raise what it raises.

    In a forked process, the thread that it began with takes OpenMP's threads of the parent for its own and waits for
    them for ever; a new one starts its own.
    """
    raised: list[BaseException] = []

    def catch() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=catch, name="work")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
