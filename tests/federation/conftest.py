"""A whole federation in this process, small enough to run dozens of times."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SMALL, Outcome
from inprocess import Clock, InProcessGrid, Interfere

from fedbayes.protocol.settings import Settings, defaults
from server_app import app as server

Federate = Callable[..., Outcome]


@pytest.fixture
def federate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federate:
    """federate(name, clients=4, interfere=…, shuffle=…, report=…, **settings) runs one and returns its Outcome."""
    return _federation(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def federate_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federate]:
    """The same for runs that all tests of a module look at."""
    with pytest.MonkeyPatch.context() as patch:
        yield _federation(tmp_path_factory.mktemp("runs"), patch)


def _federation(folder: Path, patch: pytest.MonkeyPatch) -> Federate:
    torch.set_num_threads(1)
    write_report = server._report
    patch.setattr(os, "fsync", lambda descriptor: None)  # no test cuts the power; a third of a run's time
    patch.setattr("strategies.rounds.roster.SETTLE", 0.0)
    patch.setattr("bayes_core.predict.gp_tree.STARTS", 5)
    patch.setattr("strategies.rounds.exchange.time", Clock())

    def run(
        name: str = "run",
        clients: int = 4,
        interfere: Interfere | None = None,
        shuffle: int | None = None,
        grid: InProcessGrid | None = None,
        report: bool = False,
        **settings: Any,
    ) -> Outcome:
        words = {key.replace("_", "-"): value for key, value in settings.items()}
        config = defaults() | SMALL | {"out-dir": str(folder), "run-name": name} | words
        parsed = Settings.parse(config)
        outcome = Outcome(folder / name)
        run.latest = outcome  # type: ignore[attr-defined]  # for tests whose run ends in an exception
        patch.setattr(
            server, "emit", lambda event, **fields: outcome.events.append({"event": event, **fields})
        )
        patch.setattr(server, "_report", write_report if report else lambda folder: None)
        grid = grid or InProcessGrid({}, clients, interfere, shuffle)
        for context in grid.contexts.values():
            context.run_config = parsed.as_config()
        server.run(grid, parsed)
        return outcome

    return run
