"""A ServerApp that is killed: its run ends with a reason and a true state, and no other does."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.common.constant import NOOP_FLWR_AID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedbayes.deploy.linkstate import MemoryState
from fedbayes.deploy.orphans import KILLED, Orphans
from fedbayes.protocol.files import locked
from server_app.events import PREFIX
from server_app.stored import read_config

MakeRun = Callable[..., Path]


def begun(state: MemoryState, folder: Path) -> int:
    """The number of a run whose ServerApp has said that it works in this folder."""
    run = state.create_run(
        None, None, "hash", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    task = state.run_ids[run].run.primary_task_id
    assert task is not None and state.claim_task(task) and state.activate_task(task)
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
    task = state.run_ids[number].run.primary_task_id
    assert task is not None
    log = state.get_task_log(task, None)[0]
    assert log.count(KILLED) == 1, "who follows the run's log reads it there"


def test_one_that_has_said_its_last_word_is_left_alone(state: MemoryState, make_run: MakeRun) -> None:
    folders = [make_run("ended", state="finished", saved=1), make_run("elsewhere", state="running")]
    (folders[0] / ".writer.lock").touch()
    (folders[1] / ".writer.lock").unlink(missing_ok=True)  # the coordinator does not see what is locked there
    numbers, orphans = [begun(state, folder) for folder in folders], Orphans(state)
    for _ in range(3):
        orphans.look()
    assert not any(map(state._is_finished_run, numbers))
    assert [state_in(folder)[0] for folder in folders] == ["finished", "running"]
