"""Mutated replies and hellos: whatever a site says, no exception reaches the loop, and the others' run goes on.

A seeded part runs here; `make fuzz` runs ten thousand of each, five thousand with either method.
"""

import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from flwr.app import Message, RecordDict
from harness import Outcome
from inprocess import InProcessGrid
from mutations import copy_of, mutate

import strategies
from fedbayes.protocol.settings import Settings
from server_app.stored import read_config
from strategies.rounds.loop import Loop
from strategies.rounds.measures import Row
from strategies.rounds.roster import Roster, StrategyError
from strategies.rounds.state import State

Federate = Callable[..., Outcome]
COUNT = int(os.environ.get("FUZZ", "80"))
HOSTILE = 2  # the site that says what it likes
RUNS: dict[str, dict[str, Any]] = {
    "pfedbayes": {"weighting": "examples", "wire": "float16"},
    "cfedbayes": {"family": "spike-slab", "aggregation_confidence": "weight", "layout": "rotated"},
}


class Replay(InProcessGrid):
    """Answers as real sites did, but for what `said` makes of the hostile one's answers."""

    def __init__(self, recorded: dict[str, dict[int, RecordDict]]) -> None:
        super().__init__({}, 4)
        self.recorded = recorded
        self.said: Callable[[RecordDict], RecordDict] = copy_of

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            number = list(self.contexts).index(message.metadata.dst_node_id)
            kind = "hello" if "hello" in message.content else "train"
            content = (self.said if number == HOSTILE else copy_of)(self.recorded[kind][number])
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.replies[message.metadata.message_id] = Message(content, reply_to=message)
        return [message.metadata.message_id for message in messages]


class NoJournal:
    def append(self, *_: Any) -> None: ...

    def keep(self, *_: Any) -> None: ...

    def save_checkpoint(self, *_: Any) -> None: ...


class Recorded:
    """A small run of one method, and all it takes to repeat its last exchange."""

    def __init__(self, federate: Federate, method: str) -> None:
        answers: dict[str, dict[int, RecordDict]] = {"hello": {}, "train": {}}

        def listen(number: int, message: Message, reply: Message) -> Message:
            if "hello" in message.content:
                answers["hello"][number] = copy_of(reply.content)
            elif message.content["exchange"]["train"] and message.content["exchange"]["evaluate"]:
                answers["train"][number] = copy_of(reply.content)
            return reply

        run = federate(method, method=method, rounds=2, eval_every=1, interfere=listen, **RUNS[method])
        config = read_config(run.folder)
        assert config
        self.settings = Settings.parse(config["settings"] | {"min-clients": 1})
        self.tensors = run.tensors
        self.facts: dict[str, Any] = {"members": {str(i): 0 for i in range(4)}, "empty": [], "changes": 0}
        self.grid = Replay(answers)
        self.heard: list[str] = []

    def tell(self, event: str, **said: Any) -> None:
        self.heard += [str(value) for value in said.values()]

    def gather(self) -> Roster:
        roster = Roster(self.grid, self.settings, self.tell)
        roster.gather()
        return roster

    def exchange(self, roster: Roster) -> Row:
        """One round with all that follows from its replies."""
        found = strategies.load(self.settings.method)
        method = found(found.reads.parse(self.settings.as_config()), seed=1, tell=self.tell)
        loop = Loop(method, self.settings, roster, {}, self.tell)
        loop.state = State.of(self.tensors, self.facts)
        row = loop._train(self.grid, NoJournal(), 2, due=True)
        loop._measure(row)
        return row


@pytest.fixture(scope="module", params=list(RUNS))
def recorded(request: pytest.FixtureRequest, federate_once: Federate) -> Iterator[Recorded]:
    yield Recorded(federate_once, request.param)


def assert_fit_to_be_shown(heard: list[str]) -> None:
    assert all(text.isprintable() and len(text) < 1500 for text in heard), [
        t for t in heard if not t.isprintable()
    ]


def test_no_reply_ends_a_round(recorded: Recorded) -> None:
    recorded.grid.said = copy_of
    roster = recorded.gather()
    calm = recorded.exchange(roster).columns
    assert calm["clients_ok"] == 4
    chance, dropped = random.Random(1), 0
    recorded.grid.said = lambda content: mutate(content, chance)
    for _ in range(COUNT):
        recorded.heard.clear()
        columns = recorded.exchange(roster).columns
        assert columns["clients_ok"] in (3, 4) and 0 <= columns["gm_accuracy"] <= 1
        dropped += columns["clients_failed"]
        assert_fit_to_be_shown(recorded.heard)
    assert COUNT / 4 < dropped < COUNT


def test_no_hello_ends_a_start(recorded: Recorded) -> None:
    chance, left_out, refused = random.Random(2), 0, 0
    recorded.grid.said = lambda content: mutate(content, chance)
    for _ in range(COUNT):
        recorded.heard.clear()
        try:
            roster = recorded.gather()
            left_out += "2" not in roster.sites
            assert {"0", "1", "3"} <= set(roster.sites)
        except StrategyError as error:  # it calls itself as another does, and that alone stops a start
            refused += 1
            assert "call themselves" in str(error)
        assert_fit_to_be_shown(recorded.heard)
    assert COUNT / 4 < left_out < COUNT and refused < COUNT / 20
