"""One exchange: few messages at a time where that matters, replies as they arrive, and a bound on everything."""

import gc
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from harness import Outcome
from inprocess import Clock, InProcessGrid

from strategies.rounds import exchange as room
from strategies.rounds.exchange import Exchange, Replies, held, patience, under_way_at_most

NEVER = float("inf")


class SlowGrid(InProcessGrid):
    """Node i answers `delays[i]` seconds after its message was pushed; `full` nodes take no message."""

    def __init__(self, clock: Clock, delays: list[float], simulated: bool = False) -> None:
        super().__init__({}, len(delays))
        self.clock, self.delays = clock, dict(zip(self.contexts, delays, strict=True))
        self.simulated = simulated
        self.full: set[int] = set()
        self.under_way: dict[str, tuple[float, Message]] = {}
        self.most = 0
        self.pulls = 0

    @property
    def run(self) -> SimpleNamespace:
        return SimpleNamespace(primary_task_type="flwr-simulation" if self.simulated else "flwr-serverapp")

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        accepted = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"to {node}"
            if node not in self.full:
                self.under_way[f"to {node}"] = (self.clock.monotonic() + self.delays[node], message)
                accepted.append(f"to {node}")
        self.most = max(self.most, len(self.under_way))
        return accepted

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.pulls += 1
        ready = [one for one in message_ids if self.under_way[one][0] <= self.clock.monotonic()]
        return [self.reply(self.under_way.pop(one)[1]) for one in ready]

    def reply(self, message: Message) -> Message:
        return Message(
            RecordDict({"said": ConfigRecord({"node": message.metadata.dst_node_id})}), reply_to=message
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(room, "time", made)
    return made


def messages_to(grid: InProcessGrid) -> dict[str, Message]:
    return {str(i): Message(RecordDict(), node, "train", ttl=100) for i, node in enumerate(grid.contexts)}


def exchange(grid: InProcessGrid, messages: dict[str, Message], timeout: float, reader: Any) -> Replies[Any]:
    return held(Exchange(messages, timeout, reader), grid).replies


def test_a_deployment_gets_all_messages_at_once(clock: Clock) -> None:
    grid = SlowGrid(clock, [5.0] * 40)
    replies = exchange(grid, messages_to(grid), 60, dict)
    assert grid.most == 40 and len(replies.content) == 40 and not replies.failures
    assert list(replies.content) == sorted(replies.content)
    assert 5.0 <= clock.slept < 5.0 * (1 + 2 * room.SHARE), "it notices within a few percent of the wait"
    assert grid.pulls < 1000, "and does not look more often than that takes"


def test_a_simulation_of_many_gets_a_few_at_a_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.os, "cpu_count", lambda: 2)
    grid = SlowGrid(clock, [0.5 + i / 1000 for i in range(1000)], simulated=True)
    assert under_way_at_most(grid, 1000) == 8
    replies = exchange(grid, messages_to(grid), 1e6, dict)
    assert grid.most == 8 and len(replies.content) == 1000
    assert under_way_at_most(SlowGrid(clock, [1.0] * 10, simulated=True), 10) == 600, "of few clients, all"


def test_replies_come_as_they_arrive(clock: Clock) -> None:
    grid = SlowGrid(clock, [3.0, 1.0, 2.0])
    one = Exchange(messages_to(grid), 60, dict)
    assert [site for site, _ in one.read(one.conduct(grid))] == ["1", "2", "0"]
    assert list(one.replies.content) == ["0", "1", "2"], "and are kept in the order of the sites"


def test_the_time_is_bounded_and_who_is_late_is_named(clock: Clock) -> None:
    grid = SlowGrid(clock, [1.0, NEVER, 30.0, 61.0])
    replies = exchange(grid, messages_to(grid), 60, dict)
    assert list(replies.content) == ["0", "2"] and 60 <= clock.slept < 62
    assert replies.failures == {"1": "no answer within 60 s", "3": "no answer within 60 s"}


def test_a_simulated_client_is_never_late(clock: Clock) -> None:
    grid = SlowGrid(clock, [1.0, 7200.0], simulated=True)
    replies = exchange(grid, messages_to(grid), patience(grid, 60), dict)
    assert list(replies.content) == ["0", "1"] and clock.slept > 3600, "it was waited for"
    assert patience(SlowGrid(clock, [1.0]), 60) == 60


def test_the_bound_holds_for_messages_that_were_never_sent(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "PAIRS", 1)
    monkeypatch.setattr(room.os, "cpu_count", lambda: 1)
    grid = SlowGrid(clock, [NEVER] * 9, simulated=True)
    replies = exchange(grid, messages_to(grid), 60, dict)
    assert grid.most == 4 and not replies.content and len(replies.failures) == 9
    assert clock.slept < 62


def test_errors_and_undelivered_messages_are_named(clock: Clock) -> None:
    grid = SlowGrid(clock, [1.0] * 4)
    dead, gone = list(grid.contexts)[1:3]
    grid.full = {gone}
    ordinary = grid.reply

    def reply(message: Message) -> Message:
        if message.metadata.dst_node_id == dead:
            return Message(Error(5, "Node unavailable"), reply_to=message)
        return ordinary(message)

    grid.reply = reply  # type: ignore[method-assign]
    replies = exchange(grid, messages_to(grid), 60, dict)
    assert list(replies.content) == ["0", "3"]
    assert replies.failures == {"1": "Node unavailable", "2": "its message could not be delivered"}
    assert clock.slept < 2, "nobody waits for them"


def test_a_late_reply_does_not_enter_the_next_exchange(clock: Clock) -> None:
    grid = SlowGrid(clock, [1.0, 90.0])
    assert list(exchange(grid, messages_to(grid), 60, dict).content) == ["0"]
    second = {"0": messages_to(grid)["0"]}
    assert list(exchange(grid, second, 60, dict).content) == ["0"]
    stray = Message(RecordDict({"said": ConfigRecord({})}), reply_to=next(iter(grid.under_way.values()))[1])
    one = Exchange(second, 60, dict)
    assert list(one.read([stray])) == [] and list(one.replies.failures) == ["0"]


def test_uploads_are_not_kept(federate: Callable[..., Outcome]) -> None:
    alive: list[weakref.ref[Array]] = []
    most = 0

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if "w" in reply.content:
            record = ArrayRecord(
                {key: Array(np.array(array.numpy())) for key, array in reply.content["w"].items()}
            )  # type: ignore
            reply.content["w"] = record
            alive.extend(weakref.ref(array) for array in record.values())
        return reply

    class Watched(InProcessGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            """One reply at a time, as from clients that are slower than the server."""
            nonlocal most
            gc.collect()
            most = max(most, sum(one() is not None for one in alive) - 2 * len(self.replies))
            return super().pull_messages(list(message_ids)[:1])

    gc.freeze()  # what was there before need not be looked through each time
    try:
        run = federate(grid=Watched({}, 8, interfere), rounds=2, eval_every=5)
    finally:
        gc.unfreeze()
    assert len(alive) == 2 * 8 * 2 and run.state == "finished"
    assert most == 0, "what was pulled before is gone when the next one is pulled"


def test_a_reply_that_cannot_be_unpacked_is_its_senders_alone(clock: Clock) -> None:
    grid = SlowGrid(clock, [0.0] * 4)
    pull = grid.pull_messages

    def broken(message_ids: Iterable[str]) -> Iterable[Message]:
        ids = list(message_ids)
        if "to 1007" in ids:
            raise ValueError("no such object")
        return pull(ids)

    grid.pull_messages = broken  # type: ignore[method-assign]
    replies = exchange(grid, messages_to(grid), 60, dict)
    assert list(replies.content) == ["0", "2", "3"]
    assert replies.failures == {"1": "its reply could not be handled (ValueError: no such object)"}
