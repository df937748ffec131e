"""A worker: it takes one message after the other, for whichever client, and answers with the ClientApp.

What it has made of a client (its data, its network) it keeps, as every process that serves several clients does
(client_app/site.py). Results do not depend on which worker answers.
"""

import os
import time
import traceback
from collections.abc import Sequence
from itertools import count
from multiprocessing.connection import Connection

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict

from fedbayes.launch.engine.children import in_a_thread_of_its_own
from fedbayes.launch.engine.memory import Memory
from fedbayes.launch.engine.parcel import Lines, fetch, pack, size, store, unpack

FIRST_NODE = 1  # the node id of client 0
SLOTS = (
    2  # places for replies, used in turn: a worker gets a third message only when its first reply was read
)
RAISED = 2  # Flower's number for an exception of the ClientApp


def main(pipe: int, shelf: int, slots: Sequence[int], clients: int, threads: int, device: str) -> None:
    """A worker in a new Python."""
    serve(Connection(pipe), Memory(shelf), [Memory(slot) for slot in slots], clients, threads, device)


def serve(
    pipe: Connection, shelf: Memory, slots: Sequence[Memory], clients: int, threads: int, device: str
) -> None:
    """Answer until the server has gone. `device` is the one GPU to be seen, as CUDA_VISIBLE_DEVICES names it."""
    if device:
        os.environ["CUDA_VISIBLE_DEVICES"] = device
    in_a_thread_of_its_own(lambda: _serve(pipe, shelf, slots, clients, threads))


def _serve(pipe: Connection, shelf: Memory, slots: Sequence[Memory], clients: int, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    desk = Desk(shelf)
    for number in count():
        try:
            message = desk.receive(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        began = time.monotonic()
        reply = answer(message, clients)
        data = desk.leave(reply, slots[number % SLOTS], time.monotonic() - began)
        try:
            pipe.send_bytes(data)
        except BrokenPipeError:
            return


class Desk:
    """Messages in and replies out; what the latest message brought is not read again for the next one."""

    def __init__(self, shelf: Memory) -> None:
        self._shelf = shelf
        self._received: dict[int, ArrayRecord] = {}

    def receive(self, data: bytes) -> Message:
        before, self._received = self._received, {}

        def take(number: int, lines: Lines) -> ArrayRecord:
            self._received[number] = before.get(number) or fetch(lines, self._shelf)
            return self._received[number]

        return unpack(data, take)[0]

    def leave(self, reply: Message, slot: Memory, seconds: float) -> bytes:
        end = 0

        def put(record: ArrayRecord) -> tuple[int, Lines]:
            nonlocal end
            start, end = end, end + size(record)
            return 0, store(record, slot, start)

        return pack(reply, put, seconds)


def answer(message: Message, clients: int) -> Message:
    """What the ClientApp says; what it raises becomes an error reply, as in Flower."""
    from client_app.app import app

    node = message.metadata.dst_node_id
    config: dict[str, bool | bytes | float | int | str] = {
        "partition-id": node - FIRST_NODE,
        "num-partitions": clients,
    }
    try:
        return app(message, Context(1, node, config, RecordDict(), {}))  # type: ignore[arg-type]
    except Exception as error:
        traceback.print_exc()
        return Message(Error(RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)
