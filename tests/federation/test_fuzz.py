"""Mutated replies, errors and hellos: whatever a site says, no exception reaches the loop, and the others' run goes on.

A seeded part runs here; `make fuzz` runs ten thousand of each, a thousand with every one of `RUNS`.
"""

import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from harness import Outcome
from inprocess import InProcessGrid, sites
from mutations import answer, copy_of, error, in_time, mutate

import client_app.site
import strategies
from fedbayes.protocol.agreement import Agreement
from fedbayes.protocol.settings import Settings
from server_app.stored import read_config
from strategies.rounds.loop import Loop
from strategies.rounds.measures import Row
from strategies.rounds.roster import Roster
from strategies.rounds.state import State

Federate = Callable[..., Outcome]
COUNT = int(os.environ.get("FUZZ", "40"))
FEWER = max(COUNT // 4, 1)  # of what differs less
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
    "ifca": {"method": "ifca"},
    "pfedvem": {"method": "pfedvem"},
    "apfl": {"method": "apfl"},
    "fedamp": {"method": "fedamp"},
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


def kind_of(message: Message) -> str:
    if "hello" in message.content:
        return "hello"
    exchange = message.content["exchange"]
    if exchange["closing"]:
        return "closing"
    if int(exchange["round"]) < 1:  # type: ignore[arg-type]
        return "opening"
    return "train" if exchange["train"] and exchange["evaluate"] else "other"


class Replay(InProcessGrid):
    """Answers as real sites did, but for what `said` makes of the hostile one's answers."""

    def __init__(self, recorded: dict[str, dict[int, RecordDict]]) -> None:
        super().__init__({}, 4)
        self.recorded = recorded
        self.said: Callable[[RecordDict], RecordDict | Error] = copy_of

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        for message in messages:
            number = list(self.contexts).index(message.metadata.dst_node_id)
            kind = kind_of(message)
            content = copy_of(self.recorded[kind][number])
            if kind == "hello" and "agreed" in message.content["hello"]:  # which a lie may have widened
                agreed = Agreement.read(str(message.content["hello"]["agreed"]))
                content["hello"]["classes"] = list(agreed.classes)  # type: ignore[index]
            said = self.said(content) if number == HOSTILE else content
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.replies[message.metadata.message_id] = Message(said, reply_to=message)
        return [message.metadata.message_id for message in messages]


class NoJournal:
    def append(self, *_: Any) -> None: ...

    def keep(self, *_: Any) -> None: ...

    def save_checkpoint(self, *_: Any) -> None: ...


class Recorded:
    """A small run of one method, and all it takes to repeat its last exchange."""

    def __init__(self, federate: Federate, name: str, folder: Path) -> None:
        answers: dict[str, dict[int, RecordDict]] = {}
        self.states: dict[int, State] = {}  # before each round

        def listen(number: int, message: Message, reply: Message) -> Message:
            answers.setdefault(kind_of(message), {})[number] = copy_of(reply.content)
            return reply

        def train(loop: Loop, grid: Grid, journal: Any, number: int, due: bool) -> Row | None:
            self.states[number] = loop.state
            return real(loop, grid, journal, number, due)

        real = Loop._train

        settings = dict(RUNS[name])
        if settings.get("dataset") == "table":
            settings["dataset"] = str(tables(folder / "table"))
        tells = settings.pop("share-labels", False)  # real sites, which say of labels what their owner allows
        grid = sites(folder, **{"share-labels": True}) if tells else InProcessGrid({}, 4)
        grid.interfere = listen
        with patch.object(Loop, "_train", train):
            run = federate(name, grid=grid, **{"rounds": 2, "eval_every": 1} | settings)
        config = read_config(run.folder)
        assert config
        self.settings = Settings.parse(config["settings"] | {"min-clients": 1})
        self.names = [f"site-{i}" if tells else str(i) for i in range(4)]
        self.grid = Replay(answers)
        self.heard: list[str] = []

    def tell(self, event: str, **said: Any) -> None:
        self.heard += [str(value) for value in said.values()]

    def gather(self) -> Roster:
        roster = Roster(self.grid, self.settings, self.tell)
        roster.gather()
        return roster

    def exchange(self, roster: Roster, number: int = 2) -> Row:
        """One round, or the closing exchange (3), with all that follows from its replies."""
        found = strategies.load(self.settings.method)
        method = found(found.reads.parse(self.settings.as_config()), seed=1, tell=self.tell)
        loop = Loop(method, self.settings, roster, {}, self.tell)
        loop.state = self.states[min(number, 2)]
        if number == 3:
            row = Row({"round": 2, "clients_ok": 4, "clients_failed": 0})
            loop._close(self.grid, number)
            row.columns["clients_failed"] = len(loop.exchange.replies.failures)
        else:
            row = loop._train(self.grid, NoJournal(), number, due=number > 0)
        if number > 0:
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


def try_replies(recorded: Recorded, number: int, count: int) -> int:
    """How many of so many mutated ones of an exchange were dropped."""
    recorded.grid.said = copy_of
    roster = recorded.gather()
    calm = recorded.exchange(roster, number).columns
    assert calm["clients_ok"] == 4 and calm["clients_failed"] == 0
    chance, dropped = random.Random(number), 0
    recorded.grid.said = lambda content: answer(content, chance)
    for _ in range(count):
        recorded.heard.clear()
        with in_time():
            columns = recorded.exchange(roster, number).columns
        assert columns["clients_ok"] in (3, 4)
        assert 0 <= columns.get("gm_accuracy", 0) <= 1 and 0 <= columns.get("gm_rmse", 0) < math.inf
        dropped += columns["clients_failed"]
        assert_fit_to_be_shown(recorded.heard)
    return dropped


def test_no_reply_ends_a_round(recorded: Recorded) -> None:
    """A method that needs every site asks three times, so that fewer of them are dropped."""
    needs_all = strategies.load(recorded.settings.method).traits.every_site
    assert COUNT / (12 if needs_all else 4) < try_replies(recorded, 2, COUNT) < COUNT


def test_no_reply_ends_an_opening_or_the_closing_exchange(recorded: Recorded) -> None:
    for number in [0, 3] if 0 in recorded.states else [3]:
        assert try_replies(recorded, number, FEWER) < FEWER


def mutated_hello(chance: random.Random, names: list[str]) -> Callable[[RecordDict], RecordDict | Error]:
    """One of ten claims the name of another site, and may be changed besides; one of ten is an error."""

    def said(content: RecordDict) -> RecordDict | Error:
        if chance.random() < 0.1:
            return error(chance)
        thief = chance.random() < 0.1
        changed = copy_of(content) if thief and chance.random() < 0.5 else mutate(content, chance)
        if thief and isinstance(changed.get("hello"), ConfigRecord):
            changed["hello"]["site"] = chance.choice(names)  # type: ignore[index]
        return changed

    return said


def test_no_hello_ends_a_start(recorded: Recorded) -> None:
    left_out, stolen = 0, 0
    recorded.grid.said = mutated_hello(random.Random(2), recorded.names)
    for _ in range(COUNT):
        recorded.heard.clear()
        with in_time():
            roster = recorded.gather()
        missing = {*recorded.names} - roster.sites.keys()
        left_out += recorded.names[HOSTILE] in missing
        contested = any("call themselves" in text for text in recorded.heard)
        stolen += contested
        assert len(missing - {recorded.names[HOSTILE]}) == contested, (
            "whose name is claimed is left out with the thief"
        )
        assert_fit_to_be_shown(recorded.heard)
    assert COUNT / 4 < left_out < COUNT and stolen < COUNT / 5


def test_no_hello_of_one_that_joins_ends_a_run(recorded: Recorded) -> None:
    """Whatever it says, the others go on, with it or without."""
    chance, joined = random.Random(3), 0
    for attempt in range(FEWER):
        recorded.heard.clear()
        recorded.grid.said, recorded.grid.offline = copy_of, {HOSTILE}
        roster = recorded.gather()
        recorded.grid.offline = set()
        recorded.grid.said = mutated_hello(chance, recorded.names) if attempt else copy_of
        with in_time():
            roster.refresh()
        others = {*recorded.names} - {recorded.names[HOSTILE]}
        assert others <= roster.sites.keys() and others <= {*roster.online}
        recorded.grid.said = copy_of
        with in_time():
            columns = recorded.exchange(roster).columns
        assert columns["clients_ok"] in (3, 4)
        joined += len(roster.sites) == 4
        assert_fit_to_be_shown(recorded.heard)
    assert 0 < joined < FEWER
