"""Mutated replies in a run with secure sums: whatever a site masks or tells, no exception reaches the loop.

As test_fuzz.py, with real sites that help to unmask: each time from what they kept when they had masked. A seeded part
runs here; `FUZZ=5000` runs more.
"""

import os
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Message, RecordDict
from harness import Outcome
from inprocess import InProcessGrid
from mutations import copy_of, mutate

import strategies
from fedbayes.protocol.codec import record_of
from fedbayes.protocol.settings import Settings
from server_app.stored import read_config
from strategies.rounds.loop import Loop
from strategies.rounds.measures import Row
from strategies.rounds.roster import Roster
from strategies.rounds.state import State

Federate = Callable[..., Outcome]
COUNT = int(os.environ.get("FUZZ", "80"))
SITES, HOSTILE = 4, 2


class Recorded(InProcessGrid):
    """Answers as real sites did in round 2, but for what `said` makes of the hostile one's answers."""

    def __init__(self, federate: Federate) -> None:
        super().__init__({}, SITES, self.listen)
        self.answers: dict[tuple[str, int], RecordDict] = {}  # by kind of message and site
        self.kept: dict[int, bytes] = {}  # by site: secure.json when it had masked
        self.said: Callable[[RecordDict], RecordDict] = copy_of
        self.identity: dict[str, Any] = {}
        self.replays = False
        run = federate("masked", grid=self, rounds=2, eval_every=1, secure_sum=True)
        config = read_config(run.folder)
        assert config
        self.settings, self.tensors = Settings.parse(config["settings"]), run.tensors
        self.interfere, self.replays, self.heard = None, True, list[str]()

    def state(self, site: int) -> Path:
        settings = Settings.parse(self.contexts[list(self.contexts)[site]].run_config)
        return Path(settings.out_dir) / "state" / "masked" / str(site) / "secure.json"

    def listen(self, site: int, message: Message, reply: Message) -> Message:
        kind = message.metadata.message_type
        if kind in ("query.hello", "train"):
            self.answers[kind, site] = copy_of(reply.content)
        if kind == "train":
            self.kept[site] = self.state(site).read_bytes()
            said = message.content["exchange"]
            self.identity = {word: said[word] for word in ("run", "uuid", "settings", "agreed")}
        return reply

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        if not self.replays:
            return super().push_messages(messages)
        messages = list(messages)
        for message in messages:
            site = list(self.contexts).index(message.metadata.dst_node_id)
            kind = message.metadata.message_type
            message.metadata.__dict__["_message_id"] = str(uuid4())
            if (kind, site) in self.answers:
                self.state(site).write_bytes(self.kept[site])
                content = self.answers[kind, site]
            else:
                reply = self._answer(message)
                assert reply and not reply.has_error(), reply and reply.error
                content = reply.content
            content = (self.said if site == HOSTILE else copy_of)(content)
            self.replies[message.metadata.message_id] = Message(content, reply_to=message)
        return [message.metadata.message_id for message in messages]

    def tell(self, event: str, **said: Any) -> None:
        self.heard += [str(value) for value in said.values()]

    def exchange(self) -> tuple[Row, bool]:
        """Round 2 with all that follows from its replies; and whether its sum cannot be opened."""
        roster = Roster(self, self.settings, self.tell)
        said, self.said = self.said, copy_of
        roster.gather()
        self.said = said
        found = strategies.load(self.settings.method)
        method = found(found.reads.parse(self.settings.as_config()), seed=1, tell=self.tell)
        loop = Loop(method, self.settings, roster, self.identity, self.tell)
        assert loop.secure
        loop.secure.sums.cohort = replace(loop.secure.sums.cohort, attempt=1)  # of round 1
        loop.state = State.of(self.tensors, {})
        row = loop._train(self, None, 2, due=True)  # type: ignore[arg-type]
        assert row
        if not loop.secure.lost:
            loop._measure(row)
        return row, bool(loop.secure.lost)


def other_numbers(content: RecordDict, chance: random.Random) -> RecordDict:
    """A copy in which one array of what is masked, or told, has another row; its shape is the same."""
    changed = copy_of(content)
    arrays = {name: array.numpy().copy() for name, array in changed["masked"].items()}
    array = arrays[chance.choice(sorted(arrays))]
    array[chance.randrange(len(array)) if chance.random() < 0.5 else slice(None)] ^= 1
    changed["masked"] = record_of(arrays)
    return changed


def test_no_masked_reply_ends_a_round(federate: Federate) -> None:
    grid = Recorded(federate)
    calm, lost = grid.exchange()
    assert calm.columns["clients_ok"] == SITES and not lost and 0 <= calm.columns["gm_accuracy"] <= 1
    chance, found = random.Random(1), {"whole": 0, "without it": 0, "given up": 0}
    grid.said = lambda content: chance.choice((mutate, other_numbers))(content, chance)
    for _ in range(COUNT):
        grid.heard.clear()
        row, lost = grid.exchange()
        assert row.columns["clients_ok"] in ((0,) if lost else (SITES - 1, SITES))
        assert 0 <= row.columns.get("gm_accuracy", 0) <= 1, "a sum with garbage in it may be none at all"
        assert all(text.isprintable() and len(text) < 1500 for text in grid.heard)
        said = "given up" if lost else "whole" if row.columns["clients_ok"] == SITES else "without it"
        found[said] += 1
    assert found["without it"] > COUNT / 4 and found["whole"] and found["given up"], found
