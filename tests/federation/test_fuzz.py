"""Mutated replies and hellos: whatever a site says, no exception reaches the loop, and the others' run goes on.

A seeded part runs here; `make fuzz` runs ten thousand of each, 1 700 with every one of `RUNS`.
"""

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from flwr.app import Message, RecordDict
from harness import Outcome
from inprocess import InProcessGrid, sites
from mutations import copy_of, in_time, mutate

import client_app.site
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
    "cfedbayes": {
        "method": "cfedbayes", "family": "spike-slab", "aggregation_confidence": "weight", "layout": "rotated",
    },
    "conformal": {"validation_fraction": 0.5, "conformal": 0.8, "size": "10+10"},
    "labels": {"share-labels": True},
    "table": {"dataset": "table", "target": "outcome"},
    "numbers": {"dataset": "diabetes", "layout": "iid", "size": "60+20"},
}  # fmt: skip


def tables(folder: Path) -> Path:
    """One of each site, with a number, a word and something missing."""
    folder.mkdir()
    for site in range(4):
        lines = ["age,ward,outcome"]
        lines += [
            f"{'' if i % 9 == 4 else 30 + i},{'north' if i % 3 else 'ICU'},{'ill' if i > 20 else 'well'}"
            for i in range(40)
        ]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    return folder


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

    def __init__(self, federate: Federate, name: str, folder: Path) -> None:
        answers: dict[str, dict[int, RecordDict]] = {"hello": {}, "train": {}}

        def listen(number: int, message: Message, reply: Message) -> Message:
            if "hello" in message.content:
                answers["hello"][number] = copy_of(reply.content)
            elif message.content["exchange"]["train"] and message.content["exchange"]["evaluate"]:
                answers["train"][number] = copy_of(reply.content)
            return reply

        settings = dict(RUNS[name])
        if settings.get("dataset") == "table":
            settings["dataset"] = str(tables(folder / "table"))
        tells = settings.pop("share-labels", False)  # real sites, which say of labels what their owner allows
        grid = sites(folder, **{"share-labels": True}) if tells else InProcessGrid({}, 4)
        grid.interfere = listen
        run = federate(name, grid=grid, **{"rounds": 2, "eval_every": 1} | settings)
        config = read_config(run.folder)
        assert config
        self.settings = Settings.parse(config["settings"] | {"min-clients": 1})
        self.tensors = run.tensors
        self.names = [f"site-{i}" if tells else str(i) for i in range(4)]
        self.facts: dict[str, Any] = {"members": dict.fromkeys(self.names, 0), "empty": [], "changes": 0}
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
def recorded(
    request: pytest.FixtureRequest, federate_once: Federate, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Recorded]:
    client_app.site.forget()
    yield Recorded(federate_once, request.param, tmp_path_factory.mktemp("sites"))


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
        with in_time():
            columns = recorded.exchange(roster).columns
        assert columns["clients_ok"] in (3, 4)
        assert 0 <= columns.get("gm_accuracy", 0) <= 1 and 0 <= columns.get("gm_rmse", 0) < math.inf
        dropped += columns["clients_failed"]
        assert_fit_to_be_shown(recorded.heard)
    assert COUNT / 4 < dropped < COUNT


def test_no_hello_ends_a_start(recorded: Recorded) -> None:
    chance, left_out, refused = random.Random(2), 0, 0
    recorded.grid.said = lambda content: mutate(content, chance)
    for _ in range(COUNT):
        recorded.heard.clear()
        try:
            with in_time():
                roster = recorded.gather()
            left_out += recorded.names[HOSTILE] not in roster.sites
            assert {*recorded.names} - {recorded.names[HOSTILE]} <= set(roster.sites)
        except StrategyError as error:  # it calls itself as another does, and that alone stops a start
            refused += 1
            assert "call themselves" in str(error)
        assert_fit_to_be_shown(recorded.heard)
    assert COUNT / 4 < left_out < COUNT and refused < COUNT / 20
