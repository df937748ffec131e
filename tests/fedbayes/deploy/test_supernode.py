"""A site's own parts: calls that are made again, and processes that are forks."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode import start_client_internal
from grpc import RpcError, StatusCode

from fedbayes.deploy import supernode
from fedbayes.deploy.bundles import Trust
from fedbayes.deploy.forked import Forked

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")


class Trouble(RpcError):
    def __init__(self, code: StatusCode) -> None:
        self._code = code

    def code(self) -> StatusCode:
        return self._code


def failing(times: int, code: StatusCode) -> tuple[list[int], object]:
    tries: list[int] = []

    def call(value: int) -> int:
        tries.append(value)
        if len(tries) <= times:
            raise Trouble(code)
        return value

    return tries, supernode.again(call)


def test_what_the_coordinator_could_not_take_in_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(supernode, "time", SimpleNamespace(sleep=pauses.append))
    tries, call = failing(3, StatusCode.UNKNOWN)
    assert call(7) == 7 and tries == [7] * 4 and pauses == list(supernode.PAUSES[:3])  # type: ignore[operator]
    tries, call = failing(99, StatusCode.INTERNAL)
    with pytest.raises(Trouble):
        call(7)  # type: ignore[operator]
    assert len(tries) == len(supernode.PAUSES) + 1


def test_what_was_refused_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, call = failing(99, StatusCode.RESOURCE_EXHAUSTED)
    with pytest.raises(Trouble):
        call(7)  # type: ignore[operator]
    assert len(tries) == 1


def test_a_reply_whose_client_app_was_killed_meanwhile_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own sending would wait for the rest for ever."""
    metadata = SimpleNamespace(
        run_id=1, group_id="1", message_type="train", message_id="m", reply_to_message_id="a"
    )
    deleted: list[list[str]] = []
    state = SimpleNamespace(
        get_messages=lambda is_reply: [SimpleNamespace(metadata=metadata)],
        get_message_processing_duration=lambda message_id: 1.0,
        delete_messages=lambda message_ids: deleted.append(message_ids),
    )
    parts = {"first": b"x", "second": b"", "m": b""}  # registered, and never handed over
    tree = ObjectTree(object_id="second", children=[ObjectTree(object_id="first")])
    store = SimpleNamespace(get=parts.get, get_object_tree=lambda message_id: tree, delete=parts.pop)
    pushed: list[str] = []
    monkeypatch.setattr(supernode, "HANDED", 0.1)
    start_client_internal._push_messages(
        state=state,  # type: ignore[arg-type]
        object_store=supernode.Handed(store),  # type: ignore[arg-type]
        send=lambda *_: ({"first", "second"}, "session"),
        push_object=lambda run, session, name, content: pushed.append(name),
    )
    assert "second" not in pushed and deleted == [["m", "a"]], "the site takes the next message"


@pytest.mark.parametrize(("status", "answers"), [("failed", 1), ("completed", 0)])
def test_a_client_app_that_ends_without_a_reply_is_answered_for(status: str, answers: int) -> None:
    """As when the executor above it was killed: it says that it failed, and Flower waits for its reply for ever."""
    state = supernode.Answering(ObjectStoreFactory().store())
    metadata = Metadata(1, "", 1, 7, "", "1", time.time(), 50.0, "train")
    asked = make_message(metadata, content=RecordDict())
    asked.metadata.__dict__["_message_id"] = asked.object_id
    state.store_message(asked)
    assert len(state.get_messages(is_reply=False)) == 1, "the ClientApp has it"
    state.record_message_processing_start(asked.metadata.message_id)
    task = state.create_task(TaskType.CLIENT_APP, 1)
    assert task is not None and state.claim_task(task) and state.activate_task(task)
    assert state.finish_task(task, status, "")
    found = state.get_messages(is_reply=True)
    assert [one.error.reason for one in found] == ["ClientApp stopped responding."] * answers


@needs_fork
def test_an_app_is_in_its_place_before_a_message_is_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[bytes] = []
    monkeypatch.setattr(supernode, "install", placed.append)
    fab = SimpleNamespace(content=b"an app")
    assert supernode.whole(lambda *words: fab, Trust())("hash", 1) is fab and placed == [b"an app"]


@needs_fork
def test_of_an_app_that_is_not_trusted_nothing_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on untouched: who refuses it, and says why, is the executor."""
    placed: list[bytes] = []
    monkeypatch.setattr(supernode, "install", placed.append)
    fab = SimpleNamespace(content=b"an app")
    assert supernode.whole(lambda *words: fab, Trust(only=("0" * 64,)))("hash", 1) is fab and not placed


@needs_fork
@pytest.mark.parametrize(
    ("ends", "status"), [(lambda: None, 0), (lambda: sys.exit(3), 3), (lambda: 1 / 0, 1)]
)
def test_a_fork_has_the_status_of_its_end(
    ends: object, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert Forked("a part", ends, ["a", "b"]).wait(30) == status  # type: ignore[arg-type]
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (ends.__name__ == "<lambda>" and status == 1)  # type: ignore[attr-defined]


@needs_fork
def test_a_fork_is_handled_like_any_process() -> None:
    def run() -> None:
        assert sys.argv == ["a", "b"]
        time.sleep(60)

    part = Forked("fedbayes-executor", run, ["a", "b"])
    deadline = time.monotonic() + 30
    while (name := Path(f"/proc/{part.pid}/comm").read_text().strip()) != "fedbayes-execut":
        assert time.monotonic() < deadline, name
        time.sleep(0.01)
    assert part.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        part.wait(0.1)
    part.terminate()
    assert part.wait(30) == -signal.SIGTERM
    part.kill()  # of one that has ended: nothing
    with pytest.raises(ProcessLookupError):
        os.kill(part.pid, 0)
