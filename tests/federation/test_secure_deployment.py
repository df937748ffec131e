"""Secure sums over real processes: keys that sites have signed, two sites that die in a round, and one that is late."""

import fcntl
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployed import Deployment, Running, started, until
from flwr.app import Message, RecordDict
from harness import SMALL, Outcome
from watched import Watched

from client_app import secure

pytestmark = pytest.mark.deployment
Federate = Callable[..., Outcome]
SITES, DEAD, LATE, ROUNDS = (
    6,
    (4, 5),
    3,
    12,
)  # of six sites four are the least, and of the four that are left three
SETTINGS = {key.replace("-", "_"): value for key, value in SMALL.items()} | {
    "secure_sum": True,
    "rounds": ROUNDS,
}
NOT_ASKED = ("failed: no answer yet to an earlier round", "failed: it cannot be reached")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with started(tmp_path_factory.mktemp("federation"), SITES) as federation:
        yield federation


@contextmanager
def held(federation: Deployment, run: Running, *numbers: int) -> Iterator[int]:
    """A round in which none of these sites has masked its upload yet; they cannot go on meanwhile."""
    states = {number: federation.state(number, "masked") for number in numbers}
    while True:
        with ExitStack() as locks:
            for state in states.values():
                lock = os.open(state, os.O_RDONLY)
                locks.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            for number, state in states.items():
                until(partial(federation.at_work, number, state), f"a ClientApp of site-{number}")
            current = federation.saved("masked") + 1
            kept = [json.loads((state / "secure.json").read_text())["masked"] for state in states.values()]
            if all(
                one["round"] < current for one in kept
            ):  # it is not to help to unmask a sum that it was caught
                yield current
                return
        federation.wait_for_round("masked", current, run)


class Replayed(Watched):
    """The same federation in this process: in each round the same sites are asked, and the same replies are lost."""

    def __init__(self, patch: pytest.MonkeyPatch, told: dict[int, dict[int, str]]) -> None:
        super().__init__(patch, SITES)
        failed = {(site, number) for number, of in told.items() for site in of if of[site] != "ok"}
        absent = {(site, number) for site, number in failed if told[number][site].startswith(NOT_ASKED)}
        self.lost, self.absent = failed - absent, absent

    def watch(self, site: int, message: Message, reply: Message) -> Message | None:
        if "unmask" in message.content:
            following = int(message.content["unmask"]["round"]) + 1  # type: ignore[arg-type]
            self.offline = {one for one, number in self.absent if number == following}
        return super().watch(site, message, reply)


def test_two_sites_die_and_one_is_late_and_the_sums_have_every_bit(
    federation: Deployment, federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = federation.run("masked", **SETTINGS | {"round_timeout": 300, "straggler_cutoff": 2})
    federation.wait_for_round("masked", 1, run)
    with held(federation, run, *DEAD) as struck:
        for number in DEAD:
            federation.running[f"site-{number}"].kill()
    federation.wait_for_round("masked", struck, run)
    with held(federation, run, LATE) as slow:
        stopped = federation.at_work(LATE, federation.state(LATE, "masked"))
        assert stopped
        stopped.suspend()
    federation.wait_for_round("masked", slow, run)
    stopped.resume()  # its upload arrives when the others' sum is open
    assert run.ends() == 0, run.said
    found = federation.outcome("masked")
    told: dict[int, dict[int, str]] = defaultdict(dict)
    for row in found.clients:
        told[int(row["round"])][int(row["site"].removeprefix("site-"))] = row["status"]
    for site in DEAD:
        assert told[struck][site].startswith("failed: ") and not told[struck][site].startswith(NOT_ASKED)
    assert told[slow][LATE].startswith("failed: no answer within")
    assert found.rows[struck]["clients_ok"] == "4" and found.rows[slow]["clients_ok"] == "3"
    assert told[ROUNDS][LATE] == "ok", "its late answer was heard"

    single: list[bytes] = []
    original = secure.masked

    def masked(reply: RecordDict, *arguments: Any) -> RecordDict:
        for record in reply.array_records.values():
            single.extend(array.numpy().tobytes()[:64] for array in record.values())
        return original(reply, *arguments)

    monkeypatch.setattr(secure, "masked", masked)
    grid = Replayed(monkeypatch, {number: of for number, of in told.items() if number > 0})
    replayed = federate("replayed", grid=grid, **{**SETTINGS, "straggler_cutoff": 0, "round_timeout": 30})
    assert (found.tensors["w"] == replayed.tensors["w"]).all()
    sums = [
        grid.plain(number, *(site for site, lost in grid.lost if lost == number))
        for number in sorted(grid.steps)
    ]
    assert len(sums) == len(grid.sums) == ROUNDS
    assert all(np.array_equal(one, other) for one, other in zip(grid.sums, sums, strict=True))
    assert {name for row in found.clients for name, cell in row.items() if cell} == {
        "round",
        "site",
        "status",
    }
    for file in at_the_coordinator(federation):
        content = file.read_bytes()
        assert not any(one in content for one in single), f"{file} holds a single upload"


def at_the_coordinator(federation: Deployment) -> Iterator[Path]:
    folders = (federation.folder / "runs", federation.folder / "keys/coordinator")
    yield federation.folder / "coordinator.log"
    for folder in folders:
        yield from (path for path in folder.rglob("*") if path.is_file())
