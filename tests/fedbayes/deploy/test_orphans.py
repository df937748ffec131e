"""A ServerApp that is killed: its run ends with a reason and a true state, and no other does."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from flwr.common.constant import NOOP_FLWR_AID, SubStatus
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedbayes.deploy.linkstate import MemoryState
from fedbayes.deploy.orphans import KILLED, Orphans
from fedbayes.protocol.files import locked
from server_app.events import PREFIX
from server_app.stored import read_config

MakeRun = Callable[..., Path]


def running(state: MemoryState, **config: str) -> tuple[int, str]:
    """The number of a run that Flower takes for running, and its ServerApp's token."""
    run = state.create_run(
        None, None, "hash", dict(config), NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    task = state.run_ids[run].run.primary_task_id
    assert task is not None
    token = state.claim_task(task)
    assert token and state.activate_task(task)
    return run, token


def log_of(state: MemoryState, run: int) -> str:
    task = state.run_ids[run].run.primary_task_id
    assert task is not None
    return state.get_task_log(task, None)[0]


def begun(state: MemoryState, folder: Path) -> int:
    """The number of a run whose ServerApp has said that it works in this folder."""
    run, _ = running(state)
    task = state.run_ids[run].run.primary_task_id
    assert task is not None
    said = {
        "event": "start",
        "run": folder.name,
        "folder": str(folder),
        "method": "fedavg",
        "round": 1,
        "rounds": 3,
    }
    state.add_task_log(task, f"{PREFIX}{json.dumps(said)}\n")
    return run


def state_in(folder: Path) -> tuple[str, str]:
    config = read_config(folder)
    assert config
    return config["state"], config.get("message", "")


@pytest.fixture
def state() -> MemoryState:
    return MemoryState(NoOpFederationManager(), ObjectStoreFactory().store())


def test_a_killed_server_app_is_missed_at_the_second_look(state: MemoryState, make_run: MakeRun) -> None:
    folder = make_run("killed", state="running", saved=1)
    number, orphans = begun(state, folder), Orphans(state)
    with locked(folder / ".writer.lock", 0.0, RuntimeError()):
        for _ in range(3):
            orphans.look()
        assert state_in(folder)[0] == "running" and not state._is_finished_run(number)
    orphans.look()
    assert not state._is_finished_run(number), "it may be about to say how it ended"
    orphans.look()
    assert state._is_finished_run(number) and state_in(folder) == ("failed", KILLED)
    (told,) = state.runs_told()
    assert told.state == "failed"
    assert log_of(state, number).count(KILLED) == 1, "who follows the run's log reads it there"


def test_one_that_has_said_its_last_word_is_left_alone(state: MemoryState, make_run: MakeRun) -> None:
    folders = [make_run("ended", state="finished", saved=1), make_run("elsewhere", state="running")]
    (folders[0] / ".writer.lock").touch()
    (folders[1] / ".writer.lock").unlink(missing_ok=True)  # the coordinator does not see what is locked there
    numbers, orphans = [begun(state, folder) for folder in folders], Orphans(state)
    for _ in range(3):
        orphans.look()
    assert not any(map(state._is_finished_run, numbers))
    assert [state_in(folder)[0] for folder in folders] == ["finished", "running"]


@pytest.mark.parametrize("before", ["", "running", "stopped"], ids=["new", "begun again", "resumed"])
def test_one_that_is_killed_before_it_has_said_a_word_is_missed_too(
    state: MemoryState, make_run: MakeRun, before: str
) -> None:
    """During imports or hello, of a new run or a resumed one: nothing but its process tells that it was there."""
    folder = make_run("silent", state=before, saved=1) if before else Path("runs") / "silent"
    if before:
        (folder / ".writer.lock").touch()
    number, token = running(state, **{"out-dir": str(folder.parent), "run-name": folder.name})
    orphans = Orphans(state)
    app = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "--token", token])
    try:
        with locked(folder / ".writer.lock", 0.0, RuntimeError()) if before else nullcontext():
            for _ in range(3):
                orphans.look()
        assert not state._is_finished_run(number)
    finally:
        app.kill()
    time.sleep(0.2)  # it is not waited for: the executor does not wait for its own either
    orphans.look()
    assert not state._is_finished_run(number), "it may be about to say how it ended"
    orphans.look()
    assert state._is_finished_run(number) and log_of(state, number).count(KILLED) == 1
    if before:
        assert state_in(folder) == (("failed", KILLED) if before == "running" else ("stopped", ""))
    app.wait()


def test_a_server_app_that_was_never_seen_is_not_missed(state: MemoryState) -> None:
    """Its executor may be elsewhere, or slow; and one that has said how it ended is over."""
    (never, _), (over, token), orphans = running(state), running(state), Orphans(state)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", token]) as app:
        orphans.look()
        task = state.run_ids[over].run.primary_task_id
        assert task is not None and state.finish_task(task, SubStatus.COMPLETED, "")
        app.kill()
    for _ in range(3):
        orphans.look()
    assert not state._is_finished_run(never)
    assert state._is_finished_run(over) and KILLED not in log_of(state, over)
