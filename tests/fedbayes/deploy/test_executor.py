"""Messages are carried out in forked processes that have Flower's ClientApp and nothing of the site's own fedbayes."""

import importlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, Executor

from fedbayes.deploy import executor, resident
from fedbayes.deploy.bundles import Trust

pytestmark = pytest.mark.skipif(not executor.fits(()), reason="this system cannot fork")

STAND_IN = """
import json, os, signal, sys

def flwr_clientapp():
    ours = sorted(name for name in sys.modules if name.split(".")[0] in ("fedbayes", "bayes_core"))
    default = signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    os.write(1, json.dumps([sys.argv, ours, default, os.getpid()]).encode() + b"\\n")
    sys.exit(3)
"""
PARENT = """
import json, os, socket
from fedbayes.deploy import executor
from fedbayes.deploy.bundles import Trust
executor.CLIENT_APP, executor.IMPORTED = "stand_in", ("stand_in", "bayes_core")
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    executor.wait_for_messages(theirs, Trust())
    os.write(1, b'"the end"\\n')
else:
    theirs.close()
    ours.sendall(b'["--token", "a"]\\n["--token", "b c"]\\n')
    ours.close()
    os.wait()
"""


def carried_out(tmp_path: Path, parent: str = PARENT, **variables: str) -> list[list[object]]:
    """Arguments, our modules, the default signal handler or not, and the process of each message."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **variables}
    ended = subprocess.run(
        [sys.executable, "-c", parent], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    said.remove("the end")
    return said


STAYING = """
import os, select, socket, sys
from fedbayes.deploy import resident

def one(line):
    os.write(1, f"{line.strip()} {os.getpid()}\\n".encode())
    sys.exit(3)

ours, theirs = socket.socketpair()
child = os.fork()
if child == 0:
    ours.close()
    resident.carry_out("first", theirs, one)
theirs.close()
for line in ("second\\n", "third\\n"):
    select.select([ours], [], [], 60)
    os.write(1, f"{line.strip()}: {resident.hand_over(ours, line)}\\n".encode())
select.select([ours], [], [], 60)
ours.close()
os.write(1, f"ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n".encode())
"""


def stayed(**variables: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", STAYING],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    return ended.stdout.splitlines()


def test_a_process_that_has_used_a_gpu_takes_the_next_message_too() -> None:
    lines = stayed(FEDBAYES_RESIDENT="1")
    done = [line.split() for line in lines if line.split()[0] in ("first", "second", "third")]
    assert [word for word, _ in done] == ["first", "second", "third"] and len({pid for _, pid in done}) == 1
    assert {"second: True", "third: True", "ended with 3"} <= set(lines)


def test_a_process_without_one_ends_with_its_message() -> None:
    lines = stayed()
    assert lines[0].startswith("first ") and lines[1:] == ["second: False", "third: False", "ended with 3"]


def test_a_busy_process_is_not_waited_for(tmp_path: Path) -> None:
    said = carried_out(tmp_path, FEDBAYES_RESIDENT="1")
    assert len(said) == 2, "both at once: nothing is lost"


def test_flower_is_made_fit_for_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = importlib.import_module(resident.RUNNER)
    for name in resident.NEEDED:
        monkeypatch.setattr(runner, name, getattr(runner, name))  # put back afterwards
    assert resident.prepare(), "this version of Flower has what is needed"
    with pytest.raises(SystemExit) as left:
        runner.flwr_exit(0)
    assert left.value.code == 0
    with pytest.raises(SystemExit) as left:
        runner.flwr_exit(600, "trouble")
    assert left.value.code == 1


def test_one_process_a_message_until_the_socket_closes(tmp_path: Path) -> None:
    said = carried_out(tmp_path)
    assert sorted(one[0] for one in said) == [
        ["flwr-clientapp", "--token", "a"], ["flwr-clientapp", "--token", "b c"],
    ]  # fmt: skip
    assert all(ours == [] and default for _, ours, default, _ in said)
    assert len({pid for *_, pid in said}) == 2


def test_without_the_other_process_a_message_is_carried_out_by_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    superexec = importlib.import_module("flwr.supercore.superexec.run_superexec")
    monkeypatch.setattr(superexec, "get_executor", superexec.get_executor)  # put back afterwards
    made: list[Executor] = []
    monkeypatch.setattr(superexec, "run_superexec", lambda *_, **__: made.append(superexec.get_executor()))
    ours, theirs = socket.socketpair()
    trust = Trust("", ("0" * 64,))
    executor.run_superexec("127.0.0.1:1", os.getpid(), ours, b"secret", trust)
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", started.append)
    spec = ExecutionSpec(
        task_type=TaskType.CLIENT_APP, runtime_api_address="127.0.0.1:1", token="secret", insecure=True,
        root_certificates_path=None, runtime_dependency_install=False, parent_pid=1, suppress_output=False, task_id=7,
    )  # fmt: skip
    assert made[0].launch(spec).status == "accepted"
    words = ["--runtime-api-address", "127.0.0.1:1", "--token", "secret", "--insecure"]
    words += ["--parent-pid", str(os.getpid())]
    assert json.loads(theirs.recv(1000)) == words and not started, "no token in a list of processes"
    theirs.close()
    assert made[0].launch(spec).status == "accepted"
    assert started == [[sys.executable, "-P", "-m", "fedbayes.deploy.guard", trust.write(), *words]]
    agent = replace(spec, task_type=TaskType.AGENT_APP)
    assert made[0].launch(agent).status == "failed" and len(started) == 1, "no signature would be looked at"
    assert made[0].get_eligible_capacity(set(TaskType))[0] == {TaskType.CLIENT_APP}
    made[0].close()
