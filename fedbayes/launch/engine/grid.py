"""Flower's grid over workers on this machine."""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from uuid import uuid4

from flwr.app import Error, Message, RecordDict
from flwr.supercore.run import Run

from fedbayes.launch.engine.deal import Deal
from fedbayes.launch.engine.memory import Memory
from fedbayes.launch.engine.nursery import Source
from fedbayes.launch.engine.parcel import fetch, pack, unpack
from fedbayes.launch.engine.shelf import Shelf
from fedbayes.launch.engine.worker import FIRST_NODE, SLOTS
from strategies.rounds.exchange import Nearby

CRASHED = 8  # Flower's number for a ClientApp whose process has died
KILLED = "the process that served it was killed, perhaps for want of memory"


@dataclass
class Worker:
    """One worker as the server sees it."""

    seat: int
    pipe: connection.Connection
    slots: list[Memory]
    messages: deque[Message] = field(default_factory=deque)  # under way, the oldest first; at most SLOTS
    answered: int = 0


class EmbeddedGrid(Nearby):
    """All nodes are there from the start. Replies are read when the ServerApp asks for them: there is no thread."""

    def __init__(self, clients: int, devices: Sequence[str], source: Source, shelf: Memory) -> None:
        """`devices` has one entry for each worker."""
        self._nodes = range(FIRST_NODE, FIRST_NODE + clients)
        self._devices = devices
        self._source = source
        self._shelf = Shelf(shelf)
        self._deal = Deal()
        self._replies: dict[str, Message] = {}
        self._team = [self._hire(seat) for seat in range(len(devices))]
        self._run = Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        taken = [message for message in messages if message.metadata.dst_node_id in self._nodes]
        for message in taken:
            message.metadata.__dict__["_message_id"] = uuid4().hex
            for record in message.content.array_records.values():
                self._shelf.need(record)
        self._deal.add(taken)
        self._hand_out()
        return [message.metadata.message_id for message in taken]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._read(0.0)
        return (self._replies.pop(one) for one in message_ids if one in self._replies)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As Flower's own strategies call it; no client is ever late."""
        sent = list(self.push_messages(messages))
        while not self._replies.keys() >= set(sent):
            self._read(None)
        return list(self.pull_messages(sent))

    def wait(self, seconds: float) -> None:
        if not self._replies:
            self._read(seconds)

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
        """Take the replies that are there; if there are none, those that come first within so many seconds."""
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

    def _settle(self, message: Message, reply: Message) -> None:
        self._replies[message.metadata.message_id] = reply
        for record in message.content.array_records.values():
            self._shelf.drop(record)
