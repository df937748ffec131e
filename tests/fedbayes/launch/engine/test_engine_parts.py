"""The parts of the embedded engine, without a run: memory, shelf, parcels, who serves whom."""

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedbayes.launch.engine.deal import Deal
from fedbayes.launch.engine.memory import Memory
from fedbayes.launch.engine.parcel import pack, unpack
from fedbayes.launch.engine.shelf import Shelf
from fedbayes.launch.engine.worker import Desk


@pytest.fixture(autouse=True)
def identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


def record(*values: float) -> ArrayRecord:
    return ArrayRecord({"mu": Array(np.array(values, np.float32)), "rho": Array(np.zeros(3, np.float32))})


def message(node: int = 1, kind: str = "train", **records: object) -> Message:
    return Message(RecordDict(records), node, kind, group_id="7", ttl=5.0)  # type: ignore[arg-type]


def test_memory_grows_and_its_readers_follow(memory: Memory) -> None:
    reader = Memory(os.dup(memory.descriptor))
    assert memory.write(0, b"abc") == (0, 3) and reader.read((0, 3)) == b"abc"
    assert memory.write(100_000, b"far") == (100_000, 3)
    assert reader.read((100_000, 3)) == b"far" and reader.read((0, 3)) == b"abc"
    reader.close()


def test_a_record_is_written_once_for_all_and_its_place_is_used_again(memory: Memory) -> None:
    shelf, shared, single = Shelf(memory), record(1, 2), record(3)
    for one in (shared, shared, single):
        shelf.need(one)
    first, again, other = shelf.put(shared), shelf.put(shared), shelf.put(single)
    assert first == again and other[0] != first[0]
    size = os.fstat(memory.descriptor).st_size
    assert size == sum(len(array.data) for one in (shared, single) for array in one.values())
    shelf.drop(shared)
    assert shelf.put(shared) == first, "one message still needs it"
    shelf.drop(shared)
    later = record(5, 6)
    shelf.need(later)
    number, lines = shelf.put(later)
    assert number not in (first[0], other[0]) and lines[0][4][0] == 0, "the gap is filled"
    assert os.fstat(memory.descriptor).st_size == size


def test_a_message_arrives_as_it_left(memory: Memory) -> None:
    shelf, desk, w = Shelf(memory), Desk(memory), record(1, 2)
    config = ConfigRecord({"text": "ä", "bytes": b"\x00", "numbers": [1.5, float("inf")], "yes": True})
    sent = message(node=4, config=config, w=w, metrics=MetricRecord({"n": 3, "loss": 0.1}))
    shelf.need(w)
    got = desk.receive(pack(sent, shelf.put))
    assert got.metadata.__dict__ == sent.metadata.__dict__
    assert list(got.content) == ["config", "w", "metrics"]
    assert got.content["config"] == config and got.content["metrics"] == sent.content["metrics"]
    np.testing.assert_array_equal(got.content["w"]["mu"].numpy(), [1, 2])  # type: ignore[index, call-overload]
    assert desk.receive(pack(sent, shelf.put)).content["w"] is got.content["w"], "not read twice"

    slot = Memory()
    reply = Message(RecordDict({"a": record(1), "b": record(2, 3)}), reply_to=got)
    back, seconds = unpack(desk.leave(reply, slot, 0.25), lambda _, lines: _fetch(lines, slot))
    assert seconds == 0.25 and back.metadata.dst_node_id == 1
    np.testing.assert_array_equal(back.content["b"]["mu"].numpy(), [2, 3])  # type: ignore[index, call-overload]
    error = Message(Error(2, "why"), reply_to=got)
    back, _ = unpack(desk.leave(error, slot, 0.0), lambda _, lines: _fetch(lines, slot))
    assert back.has_error() and (back.error.code, back.error.reason) == (2, "why")
    slot.close()


def _fetch(lines: list, memory: Memory) -> ArrayRecord:  # type: ignore[type-arg]
    from fedbayes.launch.engine.parcel import fetch

    return fetch(lines, memory)


def test_clients_stay_with_the_worker_that_knows_them_and_the_longest_go_first() -> None:
    deal = Deal()
    deal.add([message(node) for node in (1, 2, 3, 4)])
    first = {seat: [deal.take(seat) for _ in range(2)] for seat in (0, 1)}
    for seat, messages in first.items():
        for one, seconds in zip(messages, (1.0, 5.0), strict=True):
            deal.took(one, seconds + seat)
    nodes = {seat: [one.metadata.dst_node_id for one in messages] for seat, messages in first.items()}
    deal.add([message(node) for node in (1, 2, 3, 4)])
    assert len(deal) == 4
    for seat in (0, 1):
        assert [deal.take(seat).metadata.dst_node_id for _ in range(2)] == nodes[seat][::-1]
    assert len(deal) == 0


def test_whoever_has_nothing_left_helps_the_one_with_most_to_do() -> None:
    deal = Deal()
    deal.add([message(1), message(2)])
    for seat in (0, 1):
        deal.took(deal.take(seat), 1.0)
    deal.add([message(3)])
    deal.took(deal.take(1), 9.0)  # now the worker at seat 1 knows two clients
    deal.add([message(node) for node in (1, 2, 3)])
    homes = [deal.take(2).metadata.dst_node_id for _ in range(3)]
    assert homes[0] == 3, "of the worker with most to do, the longest"
    assert sorted(homes) == [1, 2, 3]


@pytest.mark.parametrize("told", [True, False], ids=["the system tells", "it looks itself"])
def test_a_process_ends_with_the_one_that_started_it(told: bool) -> None:
    """Linux tells it; elsewhere it looks whether its parent is still the same."""
    code = (
        "import time; from fedbayes.launch.engine import children; "
        f"children._libc = children._libc if {told} else None; "
        "print(children.fork(lambda: time.sleep(600), 'child'), flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    assert not psutil.wait_procs([child], timeout=30)[1]
    parent.stdout.close()
