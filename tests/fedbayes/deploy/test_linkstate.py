"""The coordinator's state in memory: who may take part outlives it, and no reply hangs or has no bounds."""

import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.fleet.message_handler.message_handler import push_messages
from flwr.supercore.inflatable.inflatable_object import (
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.run import InvalidRunStatusException
from messages import answers, begin, message, new_run, push

from fedbayes.deploy import linkstate, replies, superlink
from fedbayes.deploy.coordinator import public_keys
from fedbayes.deploy.fleet import SitesPort
from fedbayes.deploy.keys import make_keys
from fedbayes.deploy.linkstate import MemoryState, number_of
from fedbayes.deploy.unpacked import unpacked

KEYS = {b"key of 0": "site-0", b"key of 1": "site-1"}
NODE = number_of(b"key of 0")


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryState]:
    monkeypatch.setattr(MemoryState, "KEYS", KEYS)
    yield begin()


def names(state: MemoryState, *statuses: str) -> list[str]:
    return sorted(str(node.name) for node in state.get_node_info(statuses=statuses or None))


def test_sites_keep_their_numbers_when_the_coordinator_starts_anew(state: MemoryState) -> None:
    assert names(state, "registered") == ["site-0", "site-1"]
    assert state.activate_node(NODE, 30) and names(state, "online") == ["site-0"]
    again = begin()
    assert again.get_node_id_by_public_key(b"key of 0") == NODE, "what the site calls itself by is still true"
    assert names(again, "online") == []
    assert again.get_message_ins(NODE, 1) == [] and names(again, "online") == ["site-0"], (
        "asking for work is a sign of life"
    )


def test_a_site_can_be_removed_before_it_ever_came_and_taken_in_again(state: MemoryState) -> None:
    state.delete_node(NOOP_FLWR_AID, NODE)
    assert state.get_node_id_by_public_key(b"key of 0") is None
    words = (NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, b"key of 0", 30.0)
    assert state.create_node(*words, name="site-0") == NODE
    assert state.get_node_id_by_public_key(b"key of 0") == NODE
    with pytest.raises(ValueError, match="already in use"):
        state.create_node(*words, name="site-9")
    assert names(state, "registered") == ["site-0", "site-1"]


def test_no_key_without_a_name(state: MemoryState) -> None:
    """It could call itself by any."""
    with pytest.raises(ValueError, match="needs a name"):
        state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, b"another", 30.0)
    assert state.get_node_id_by_public_key(b"another") is None


def test_the_keys_are_those_of_the_folder(tmp_path: Path) -> None:
    make_keys(tmp_path, ["127.0.0.1"], 2)
    assert sorted(public_keys(tmp_path / "coordinator/sites").values()) == ["site-0", "site-1"]


# ---------------------------------------------------------------- replies


def exchange(
    state: MemoryState, size: int = 100, question: Any = None, answer: Any = None
) -> tuple[int, Message, Message]:
    """A run, a message to site-0 that it has taken, and its reply: of about so many bytes, or what is given."""
    state.activate_node(NODE, 30)
    run = new_run(state)
    asked = message(run, SUPERLINK_NODE_ID, NODE, "", 10, what=question)
    push(state, run, asked)
    (taken,) = state.get_message_ins(NODE, 1)
    return run, asked, message(run, NODE, SUPERLINK_NODE_ID, taken.metadata.message_id, size, what=answer)


def test_a_reply_is_handed_on_when_it_is_whole(state: MemoryState) -> None:
    run, asked, reply = exchange(state)
    assert all(push(state, run, reply, parts=1))
    assert answers(state, run, asked) == [], "the rest is on its way"
    assert all(push(state, run, reply)), "sent once more, it is the same reply"
    (found,) = answers(state, run, asked)
    assert found.metadata.message_id == reply.metadata.message_id and not found.has_error()


def test_whoever_asks_for_work_has_given_its_reply_up(state: MemoryState) -> None:
    run, asked, reply = exchange(state)
    push(state, run, reply, parts=1)
    assert state.get_message_ins(NODE, 1) == []
    (found,) = answers(state, run, asked)
    assert found.has_error() and found.error.reason == replies.ABANDONED
    assert reply.metadata.message_id not in state.object_store, "nothing of it stays"


def test_a_message_that_never_arrived_is_handed_out_again(state: MemoryState) -> None:
    """The connection broke while it was on its way: the site asks again, and has confirmed nothing."""
    run, asked, reply = exchange(state)
    (again,) = state.get_message_ins(NODE, 1)
    assert again.metadata.message_id == asked.metadata.message_id and answers(state, run, asked) == []
    state.object_store.delete(asked.metadata.message_id)  # the site confirms what it has received
    assert all(push(state, run, reply))
    (found,) = answers(state, run, asked)
    assert not found.has_error()


def test_a_site_that_asks_for_work_without_having_answered_will_not(state: MemoryState) -> None:
    run, asked, _ = exchange(state)
    state.object_store.delete(asked.metadata.message_id)
    assert state.get_message_ins(NODE, 1) == []
    (found,) = answers(state, run, asked)
    assert found.has_error() and found.error.reason == replies.UNSENT


def test_a_site_that_was_killed_is_taken_in_as_soon_as_it_was_silent_and_its_message_answered_for(
    state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked, _ = exchange(state)
    assert not state.activate_node(NODE, 30), "a second one with the same key is refused"
    assert answers(state, run, asked) == []
    monkeypatch.setattr(linkstate, "SILENT", -1.0)
    assert state.activate_node(NODE, 30)
    (found,) = answers(state, run, asked)
    assert found.has_error() and found.error.reason == replies.RESTARTED
    assert state.get_message_ins(NODE, 1) == [], "it is asked nothing twice"


def test_a_site_that_was_stopped_well_and_starts_is_answered_for_too(state: MemoryState) -> None:
    run, asked, reply = exchange(state)
    push(state, run, reply, parts=1)
    assert state.deactivate_node(NODE) and state.activate_node(NODE, 30)
    (found,) = answers(state, run, asked)
    assert found.error.reason == replies.RESTARTED


def test_a_site_that_dies_while_it_sends_is_said_to_be_dead(state: MemoryState) -> None:
    run, asked, reply = exchange(state)
    push(state, run, reply, parts=1)
    state.nodes[NODE].online_until = time.time() - 1
    (found,) = answers(state, run, asked)
    assert found.has_error() and found.error.code == 5


@pytest.mark.parametrize("parts", [0, 1])
def test_a_site_that_is_removed_meanwhile_is_answered_for_at_once(state: MemoryState, parts: int) -> None:
    """Also in the middle of its reply, for the rest of which Flower would wait three minutes."""
    run, asked, reply = exchange(state)
    push(state, run, reply, parts)
    state.delete_node(NOOP_FLWR_AID, NODE)
    (found,) = answers(state, run, asked)
    assert found.has_error() and found.error.code == 5


def test_twelve_sites_at_once_lose_no_reply_in_a_hundred_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a thread of its own, as behind the sites' port, while a ServerApp asks for all of their replies."""
    keys = {f"key of {number}".encode(): f"site-{number}" for number in range(12)}
    monkeypatch.setattr(MemoryState, "KEYS", keys)
    state, nodes, over = begin(), [number_of(key) for key in keys], threading.Event()
    run = new_run(state)

    def work(node: int) -> None:
        assert state.activate_node(node, 30)
        while not over.is_set():
            for taken in state.get_message_ins(node, 1):
                asked = taken.metadata.message_id
                for part in iterate_object_tree(state.object_store.get_object_tree(asked)):
                    while not state.get_object(run, part.object_id):
                        time.sleep(0.001)
                state.object_store.delete(asked)  # it has arrived
                assert all(push(state, run, message(run, node, SUPERLINK_NODE_ID, asked, 1000)))
            time.sleep(0.001)

    with ThreadPoolExecutor(len(nodes)) as pool:
        sites = [pool.submit(work, node) for node in nodes]
        try:
            for _ in range(100):
                asked = {node: message(run, SUPERLINK_NODE_ID, node, "", 10) for node in nodes}
                for one in asked.values():
                    push(state, run, one)
                waiting, came = {one.metadata.message_id for one in asked.values()}, list[Message]()
                deadline = time.monotonic() + 60
                while waiting and time.monotonic() < deadline:
                    found = state.get_message_res(waiting, run)
                    came += found
                    waiting -= {one.metadata.reply_to_message_id for one in found}
                assert sorted(one.metadata.src_node_id for one in came) == sorted(nodes), "each of them, once"
                assert not any(one.has_error() for one in came)
                state.delete_messages({one.metadata.message_id for one in asked.values()})
        finally:
            over.set()
    assert not [error for site in sites if (error := site.exception())]


def test_nothing_stays_of_rounds_that_are_over(state: MemoryState) -> None:
    """As a ServerApp does: it asks, fetches the reply, and has both deleted."""
    run, sizes = exchange(state)[0], set()
    for _ in range(50):
        (before,) = [name for name, one in state.message_ins_store.items() if one.metadata.run_id == run]
        state.delete_messages({before})
        asked = message(run, SUPERLINK_NODE_ID, NODE, "", 10)
        push(state, run, asked)
        (taken,) = state.get_message_ins(NODE, 1)
        state.object_store.delete(taken.metadata.message_id)
        push(state, run, message(run, NODE, SUPERLINK_NODE_ID, taken.metadata.message_id, 5000))
        (found,) = answers(state, run, asked)
        assert not found.has_error()
        state.object_store.delete(found.metadata.message_id)
        held = (state.message_ins_store, state.message_res_store, state.message_ins_id_to_message_res_id)
        held += (state._uploads, state._pushed, state._object_push_sessions, state.object_store.store)
        sizes.add(tuple(map(len, held)))
    assert len(sizes) == 1, sizes


def test_a_reply_to_a_run_of_an_earlier_coordinator_is_refused_at_once(state: MemoryState) -> None:
    """Flower stumbles over it (KeyError), and a site would send it again and again."""
    late = message(123, NODE, SUPERLINK_NODE_ID, "asked", 10)
    request = PushMessagesRequest(
        messages_list=[message_to_proto(late)], message_object_trees=[get_object_tree(late)]
    )
    with pytest.raises(InvalidRunStatusException, match="finished"):
        push_messages(request, state)


def test_a_reply_far_larger_than_what_was_sent_is_refused_at_once(
    state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "LEAST", 1000)
    run, asked, reply = exchange(state, size=5000)
    assert push(state, run, reply)[-1] is False
    (found,) = answers(state, run, asked)
    assert found.has_error() and "its reply is larger than" in str(found.error.reason)
    assert reply.metadata.message_id not in state.object_store


def zeros(size: int) -> ArrayRecord:
    """Of so many bytes, in pieces of 100: all are the same one."""
    return ArrayRecord({"mu": Array("float32", (size // 4,), "numpy.ndarray", bytes(size))})


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[Array.__module__], "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 100)
    monkeypatch.setattr(replies, "LEAST", 3000)


@pytest.mark.usefixtures("small_pieces")
def test_an_array_that_names_one_piece_over_and_over_is_as_large_as_it_will_be(state: MemoryState) -> None:
    """A few hundred bytes on their way; refused at once, and nothing of it is kept."""
    run, asked, reply = exchange(state, answer=zeros(4000))
    *others, last = push(state, run, reply)
    assert all(others) and not last
    (found,) = answers(state, run, asked)
    assert found.has_error() and found.error.reason.startswith("its reply is larger than")
    assert not any(entry.content.startswith(b"Array") for entry in state.object_store.store.values())


@pytest.mark.usefixtures("small_pieces")
def test_what_the_run_sends_itself_counts_as_large_as_it_will_be_too(state: MemoryState) -> None:
    """Weights begin with many equal numbers, and come back with others."""
    noise = Array("float32", (1250,), "numpy.ndarray", random.Random(1).randbytes(5000))
    run, asked, reply = exchange(state, question=zeros(4000), answer=ArrayRecord({"mu": noise}))
    assert all(push(state, run, reply))
    (found,) = answers(state, run, asked)
    assert not found.has_error()


@pytest.mark.usefixtures("small_pieces")
def test_the_size_of_a_message_is_that_of_its_arrays_put_together(state: MemoryState) -> None:
    """Each piece has a head of 16 bytes; two names of one array are one array."""
    run, record = exchange(state)[0], zeros(1000)
    record["rho"], record["lambda"] = record["mu"], Array("float32", (25,), "numpy.ndarray", bytes(100))
    sent = message(run, SUPERLINK_NODE_ID, NODE, "", 0, what=record)
    push(state, run, sent)
    assert len(b"ArrayChunk  100\0") == 16
    assert unpacked(sent.metadata.message_id, state.object_store) == 10 * 116 + 116


def test_pieces_of_a_reply_that_was_given_up_do_not_raise_the_limit(
    state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do those of a session that nobody began."""
    monkeypatch.setattr(replies, "LEAST", 1000)
    run, asked, reply = exchange(state, size=5000)
    before = state._limit(run)
    session = state.start_session(run)
    state.store_message_and_object_tree(reply, get_object_tree(reply), session)
    for name in (session, session, "another", ""):
        assert not state.store_object(run, name, "0" * 64, b"x" * 5000)
    assert state._limit(run) == before
    assert answers(state, run, asked)[0].has_error()


def test_a_reply_of_too_many_parts_is_refused(state: MemoryState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "OBJECTS", 2)
    run, asked, reply = exchange(state)
    assert push(state, run, reply) == []
    (found,) = answers(state, run, asked)
    assert "3 parts" in str(found.error.reason)


def ladder(steps: int) -> list[ObjectTree]:
    """Each step is twice the one below, which is listed without its own parts: 2^steps when they are put together."""
    names = [sha256(str(number).encode()).hexdigest() for number in range(steps + 1)]
    pairs = zip(names[1:], names, strict=False)
    return [ObjectTree(object_id=one, children=[ObjectTree(object_id=below)] * 2) for one, below in pairs]


@pytest.mark.parametrize("before", [False, True])
def test_a_reply_of_few_parts_that_would_be_more_than_any_machine_holds_is_refused(
    state: MemoryState, before: bool
) -> None:
    """Also where an earlier message, still on its way, has told of the lower steps."""
    run, first, _ = exchange(state)
    asked = [first, message(run, SUPERLINK_NODE_ID, NODE, "", 10)]
    push(state, run, asked[1])
    steps, sent = (
        ladder(80),
        [message(run, NODE, SUPERLINK_NODE_ID, one.metadata.message_id, 10) for one in asked],
    )
    parts = [steps[:1], steps[1:2]] if before else [steps]
    for reply, own in zip(sent, parts, strict=False):
        tree = ObjectTree(object_id=reply.metadata.message_id, children=own)
        stored, _ = state.store_message_and_object_tree(reply, tree, state.start_session(run))
    assert not stored
    (answer,) = answers(state, run, asked[len(parts) - 1])
    assert answer.error.reason == replies.TWOFOLD


def test_the_sites_port_has_its_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = import_module("flwr.superlink.cli.flower_superlink")
    factory = import_module("flwr.server.superlink.linkstate.linkstate_factory")
    monkeypatch.setattr(program, "GRPC_MAX_MESSAGE_LENGTH", program.GRPC_MAX_MESSAGE_LENGTH)
    monkeypatch.setattr(program, "FleetServicer", program.FleetServicer)
    monkeypatch.setattr(factory, "InMemoryLinkState", factory.InMemoryLinkState)
    monkeypatch.setattr(MemoryState, "KEYS", MemoryState.KEYS)
    superlink.prepare({"sites": str(tmp_path)})
    assert program.GRPC_MAX_MESSAGE_LENGTH == superlink.LARGEST
    assert factory.InMemoryLinkState is not MemoryState
    assert program.FleetServicer is SitesPort
