"""Messages are carried out in forked processes that have Flower's ClientApp and nothing of the site's own fedbayes."""

import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, Executor

from fedbayes.deploy import executor

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
executor.CLIENT_APP, executor.IMPORTED = "stand_in", ("stand_in", "bayes_core")
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    executor.wait_for_messages(theirs)
    os.write(1, b'"the end"\\n')
else:
    theirs.close()
    ours.sendall(b'["--token", "a"]\\n["--token", "b c"]\\n')
    ours.close()
    os.wait()
"""


def test_one_process_a_message_until_the_socket_closes(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", PARENT], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    said.remove("the end")
    assert sorted(one[0] for one in said) == [
        ["flwr-clientapp", "--token", "a"], ["flwr-clientapp", "--token", "b c"],
    ]  # fmt: skip
    assert all(ours == [] and default for _, ours, default, _ in said)
    assert len({pid for *_, pid in said}) == 2


def test_without_the_other_process_a_message_is_carried_out_flowers_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    superexec = importlib.import_module("flwr.supercore.superexec.run_superexec")
    monkeypatch.setattr(superexec, "get_executor", superexec.get_executor)  # put back afterwards
    made: list[Executor] = []
    monkeypatch.setattr(superexec, "run_superexec", lambda *_, **__: made.append(superexec.get_executor()))
    ours, theirs = socket.socketpair()
    executor.run_superexec("127.0.0.1:1", os.getpid(), ours)
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
    assert started[0][0] == "flwr-clientapp" and "secret" in started[0]
    made[0].close()
