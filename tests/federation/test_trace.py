"""How many files a reader of one pFedBayes exchange opens: those of ours in which a line runs during it.

Round 3 of a run in this process, without an evaluation: everything that is made once per run has been made. Before the
rooms were rebuilt, the same trace had 35 files.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from harness import Outcome

from server_app import app as server

ROOT = Path(server.__file__).parents[1]
ROOMS = ("bayes_core", "client_app", "fedbayes", "server_app", "strategies")
AT_MOST = 30


def test_one_exchange_is_read_in_few_files(
    federate: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    events = sys.modules["server_app.events"]
    real, tracing = events.emit, False

    def emit(event: str, **said: Any) -> None:
        nonlocal tracing
        real(event, **said)  # the event that ends the exchange is a part of it
        tracing = event == "round" and said["round"] == 2

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if tracing and event == "call":
            seen.add(frame.f_code.co_filename)

    def run(*arguments: Any) -> None:
        monkeypatch.setattr(server, "emit", emit)  # instead of the fixture's own
        sys.setprofile(profile)
        try:
            original(*arguments)
        finally:
            sys.setprofile(None)

    original = server.run
    monkeypatch.setattr(server, "run", run)
    federate(rounds=4, eval_every=100)
    paths = [Path(name) for name in seen]
    ours = sorted(str(path.relative_to(ROOT)) for path in paths if path.is_relative_to(ROOT))
    found = [name for name in ours if name.split("/")[0] in ROOMS]
    assert "client_app/app.py" in found and "strategies/rounds/loop.py" in found
    assert len(found) <= AT_MOST, "\n".join(found)
