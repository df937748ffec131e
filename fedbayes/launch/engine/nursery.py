"""Where workers come from.

The nursery is a process that was copied from the server before it began, and from which workers are copied. It computes
nothing and opens nothing, so that a worker that replaces another one, hours later, begins as the first ones did: with
the imports, the user's objects and the data that were there at the start, which all of them share in memory.
"""

import gc
import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Protocol

from fedbayes.launch.engine import worker
from fedbayes.launch.engine.children import fork, spawn
from fedbayes.launch.engine.memory import Memory
from strategies import StrategyError

NAME = "fedbayes-worker"
WORD = 64  # bytes of a device's name, at most
Hired = tuple[Connection, list[Memory]]  # a pipe to a worker, and where its replies will stand


class Source(Protocol):
    """Gives one more worker, on this device."""

    def hire(self, device: str) -> Hired: ...


class Nursery:
    """The server's side of it."""

    def __init__(self, shelf: Memory, clients: int, threads: int, private: Sequence[int] = ()) -> None:
        """Forks: nothing may have been computed yet. `private` are open files that no other process is to have."""
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)

        def keep() -> None:
            self._control.close()
            for descriptor in private:
                os.close(descriptor)
            _keep(theirs, shelf, clients, threads)

        fork(keep, "fedbayes-forker")
        theirs.close()

    def hire(self, device: str) -> Hired:
        try:
            self._control.send(device.encode() or b" ")
            _, (pipe, *slots), *_ = socket.recv_fds(self._control, 1, 1 + worker.SLOTS)
        except (OSError, ValueError):
            raise StrategyError("The process that starts the simulated clients was killed.") from None
        return Connection(pipe), [Memory(slot) for slot in slots]


def _keep(control: socket.socket, shelf: Memory, clients: int, threads: int) -> None:
    """One worker for each device that is asked for, until the server has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a worker ended
    gc.freeze()  # or the collector would touch, and so copy, what all workers share
    while device := control.recv(WORD):
        ours, theirs = socket.socketpair()
        slots = [Memory() for _ in range(worker.SLOTS)]

        def work(device: bytes, ours: socket.socket, theirs: socket.socket, slots: list[Memory]) -> None:
            control.close()
            ours.close()
            pipe = Connection(theirs.detach())
            worker.serve(pipe, shelf, slots, clients, threads, device.decode().strip())

        fork(lambda: work(device, ours, theirs, slots), NAME)  # noqa: B023  # runs now or never
        socket.send_fds(control, [b"."], [ours.fileno(), *(slot.descriptor for slot in slots)])
        ours.close()
        theirs.close()
        for slot in slots:
            slot.close()


class NewPythons:
    """Workers where a process cannot be copied: each imports everything anew."""

    def __init__(self, shelf: Memory, clients: int, threads: int) -> None:
        self._shelf, self._clients, self._threads = shelf, clients, threads
        self._children: list[subprocess.Popen[bytes]] = []

    def hire(self, device: str) -> Hired:
        self._children = [child for child in self._children if child.poll() is None]
        ours, theirs = socket.socketpair()
        slots = [Memory() for _ in range(worker.SLOTS)]
        places = [slot.descriptor for slot in slots]
        arguments = (theirs.fileno(), self._shelf.descriptor, places, self._clients, self._threads, device)
        self._children.append(spawn(worker.__name__, arguments, NAME, pass_fds=[*arguments[:2], *places]))
        theirs.close()
        return Connection(ours.detach()), slots
