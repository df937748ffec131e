"""Flower's grid over workers on this machine."""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection

from flwr.app import Error, Message

from fedbayes.launch.engine.memory import Memory
from fedbayes.launch.engine.nursery import Source
from fedbayes.launch.engine.parcel import fetch, pack, unpack
from fedbayes.launch.engine.pool import CRASHED, Pool
from fedbayes.launch.engine.shelf import Shelf
from fedbayes.launch.engine.worker import SLOTS

KILLED = "the process that served it was killed, perhaps for want of memory"


@dataclass
class Worker:
    """One worker as the server sees it."""

    seat: int
    pipe: connection.Connection
    slots: list[Memory]
    messages: deque[Message] = field(default_factory=deque)  # under way, the oldest first; at most SLOTS
    answered: int = 0


class EmbeddedGrid(Pool):
    """Workers are processes of this machine, and arrays cross in memory that they share."""

    def __init__(self, clients: int, devices: Sequence[str], source: Source, shelf: Memory) -> None:
        """`devices` has one entry for each worker."""
        super().__init__(clients)
        self._devices = devices
        self._source = source
        self._shelf = Shelf(shelf)
        self._team = [self._hire(seat) for seat in range(len(devices))]

    def close(self) -> None:
        """Workers end when their pipe does."""
        for worker in self._team:
            worker.pipe.close()

    def _hire(self, seat: int) -> Worker:
        return Worker(seat, *self._source.hire(self._devices[seat]))

    def _hand_out(self) -> None:
        """A message for whoever has none; and, while there are enough for all, the one after it too, so that nobody
        waits for the next while the server is busy."""
        for most in range(1, SLOTS + 1):
            for worker in self._team:
                waiting = len(self._deal)
                if len(worker.messages) < most and waiting >= (1 if most == 1 else len(self._team)):
                    message = self._deal.take(worker.seat)
                    worker.messages.append(message)
                    with suppress(OSError):  # it has died, which is found out when its reply is read
                        worker.pipe.send_bytes(pack(message, self._shelf.put))

    def _read(self, seconds: float | None) -> None:
        pipes = {worker.pipe: worker for worker in self._team}
        for pipe in connection.wait(list(pipes), seconds):
            worker = pipes[pipe]  # type: ignore[index]
            try:
                data = worker.pipe.recv_bytes()
            except (EOFError, OSError):
                self._replace(worker)
                continue
            slot = worker.slots[worker.answered % SLOTS]
            worker.answered += 1
            message = worker.messages.popleft()
            reply, spent = unpack(data, lambda _, lines, slot=slot: fetch(lines, slot))  # type: ignore[misc]
            self._deal.took(message, spent)
            self._settle(message, reply)
        self._hand_out()

    def _replace(self, worker: Worker) -> None:
        """A worker that has died costs the message that it was at; the one after it goes to somebody else."""
        worker.pipe.close()
        for slot in worker.slots:
            slot.close()
        if worker.messages:
            lost = worker.messages.popleft()
            self._settle(lost, Message(Error(CRASHED, KILLED), reply_to=lost))
        self._deal.add(worker.messages)
        self._team[worker.seat] = self._hire(worker.seat)

    def _need(self, message: Message) -> None:
        for record in message.content.array_records.values():
            self._shelf.need(record)

    def _drop(self, message: Message) -> None:
        for record in message.content.array_records.values():
            self._shelf.drop(record)
