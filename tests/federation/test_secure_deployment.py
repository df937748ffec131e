"""Secure sums over real processes: keys that sites have signed, and a site that dies in the middle of a round."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployed import Deployment, started, until
from flwr.app import Message, RecordDict
from harness import SMALL, Outcome
from watched import Watched

from client_app import secure

pytestmark = pytest.mark.deployment
Federate = Callable[..., Outcome]
SITES, DEAD, ROUNDS = 4, 3, 8  # three sites are the least
SETTINGS = {key.replace("-", "_"): value for key, value in SMALL.items()} | {
    "secure_sum": True,
    "rounds": ROUNDS,
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with started(tmp_path_factory.mktemp("federation"), SITES) as federation:
        yield federation


class Mortal(Watched):
    """The same federation in this process; one site dies in the middle of round `struck`."""

    def __init__(self, patch: pytest.MonkeyPatch, struck: int) -> None:
        super().__init__(patch, SITES)
        self.lost = {(DEAD, struck)}
        self.struck = struck

    def watch(self, site: int, message: Message, reply: Message) -> Message | None:
        if "unmask" in message.content and int(message.content["unmask"]["round"]) == self.struck:  # type: ignore[arg-type]
            self.offline = {DEAD}
        return super().watch(site, message, reply)


def test_a_site_dies_in_the_middle_of_a_round_and_the_sum_has_every_bit(
    federation: Deployment, federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = federation.run("masked", **SETTINGS | {"round_timeout": 300})
    federation.wait_for_round("masked", 1, run)
    state = federation.state(DEAD, "masked")
    while True:  # until it is caught before its upload, not when it helps to unmask a sum
        lock = os.open(state, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            until(partial(federation.at_work, DEAD, state), f"a ClientApp of site-{DEAD}")
            struck = federation.saved("masked") + 1
            if json.loads((state / "secure.json").read_text())["masked"]["round"] < struck:
                federation.running[f"site-{DEAD}"].kill()
                break
        finally:
            os.close(lock)
        federation.wait_for_round("masked", struck, run)
    assert run.ends() == 0, run.said
    found = federation.outcome("masked")
    told = {(row["round"], row["site"]): row["status"] for row in found.clients}
    assert told[str(struck), f"site-{DEAD}"].startswith("failed: ")
    assert [row["clients_ok"] for row in found.rows[struck:]] == ["3"] * (ROUNDS - struck + 1)

    single: list[bytes] = []
    original = secure.masked

    def masked(reply: RecordDict, *arguments: Any) -> RecordDict:
        for record in reply.array_records.values():
            single.extend(array.numpy().tobytes()[:64] for array in record.values())
        return original(reply, *arguments)

    monkeypatch.setattr(secure, "masked", masked)
    grid = Mortal(monkeypatch, struck)
    replayed = federate("replayed", grid=grid, **{**SETTINGS, "straggler_cutoff": 0, "round_timeout": 30})
    assert (found.tensors["w"] == replayed.tensors["w"]).all()
    sums = [grid.plain(number, *([DEAD] if number == struck else [])) for number in sorted(grid.steps)]
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
