"""Carries out a site's messages, each in a process of its own, forked from one that has imported PyTorch already.

Flower starts a new Python for every message, whose imports alone take seconds of processor time. So `fedbayes site`
runs Flower's SuperExec as `python -m fedbayes.deploy.executor ADDRESS PARENT SECRET TRUST HOW`. It forks once, when
Flower is imported, so that both processes share that memory: the second one imports what else is the same for every
run, and forks again for each message. The app itself comes with the run; every message imports it anew, from the bundle
that the coordinator has sent, once it has been looked at (guard.py). Where it cannot fork, or shall not, every message
is a new Python.

A process that has used a GPU stays and takes the next message too (resident.py): its context on the device took seconds
to make.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbayes.deploy import guard, resident
from fedbayes.deploy.bundles import Trust

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult

CLIENT_APP = "flwr.supernode.cli.flwr_clientapp"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
IMPORTED = (CLIENT_APP, "torch", "safetensors.torch")
OTHERWISE = (
    "--isolation",
    "--host",
    "--port",
    "--ssl-",
    "--superexec-",
)  # what a SuperNode is told of its executor


def command(address: str, secret: Path, trust: Trust, forks: bool) -> list[str]:
    """The SuperExec of a SuperNode, both started by the process that this one is going to be."""
    words = [address, str(os.getpid()), str(secret), trust.write(), "fork" if forks else "spawn"]
    return [sys.executable, "-P", "-m", "fedbayes.deploy.executor", *words]


def main() -> None:
    address, parent, file, text, how = sys.argv[1:]
    trust, secret = Trust.read(text), Path(file).read_bytes()
    if how == "spawn":
        run_superexec(address, int(parent), None, secret, trust)
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start threads now, which a fork does not copy
    for module in (CLIENT_APP, SUPEREXEC):
        importlib.import_module(module)
    gc.freeze()  # what is never looked at again stays shared
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        wait_for_messages(theirs, trust)
    else:
        theirs.close()
        run_superexec(address, int(parent), ours, secret, trust)


def wait_for_messages(requests: socket.socket, trust: Trust) -> None:
    """Ends with the SuperExec, which closes its end of the socket then. A child carries out one message and ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the SuperExec, which tells its ClientApps
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in IMPORTED:
        importlib.import_module(module)
    guard.watch(trust)
    resident.forget_app()  # the site's own fedbayes may be another version than the run's
    gc.freeze()
    # Nobody asks how a child has ended: the kernel clears it away.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    worker: socket.socket | None = None
    for line in requests.makefile("r", encoding="utf-8"):
        if worker is not None and resident.hand_over(worker, line):
            continue
        if worker is not None:
            worker.close()  # it ends when it is done
        worker, theirs = socket.socketpair()
        if os.fork() == 0:
            requests.close()
            worker.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            resident.carry_out(line, theirs, carry_out_one)  # does not return
        theirs.close()


def carry_out_one(line: str) -> None:
    """One message, as Flower's own program would; ends with SystemExit."""
    sys.argv = ["flwr-clientapp", *json.loads(line)]
    sys.modules[CLIENT_APP].flwr_clientapp()


def run_superexec(
    address: str, parent: int, requests: socket.socket | None, secret: bytes, trust: Trust
) -> None:
    """Flower's own loop, which ends with its parent."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import LaunchResult, SubprocessExecutor

    class Ours(SubprocessExecutor):
        def get_eligible_capacity(
            self, supported_task_types: set["TaskType"], **_: Any
        ) -> tuple[set["TaskType"], set[str]]:
            """A site does nothing but answer messages: Flower's agents would come with programs of their own."""
            return supported_task_types & {TaskType.CLIENT_APP}, set()

        def launch(self, spec: "ExecutionSpec") -> "LaunchResult":
            if spec.task_type is not TaskType.CLIENT_APP:
                return LaunchResult.failed(f"A site carries out no {spec.task_type}.")
            words = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token, "--insecure"]
            words += ["--parent-pid", str(os.getpid())]
            try:
                if requests is not None:
                    requests.sendall(f"{json.dumps(words)}\n".encode())
                    return LaunchResult.accepted()
            except OSError:
                pass  # the other process was killed; a new one for this message is slower and needs nobody
            subprocess.Popen(guard.command(trust, words))
            return LaunchResult.accepted()

        def close(self) -> None:
            if requests is not None:
                requests.close()

    superexec = importlib.import_module(SUPEREXEC)
    superexec.get_executor = lambda *_, **__: Ours()  # type: ignore[attr-defined]
    superexec.run_superexec(address, insecure=True, superexec_auth_secret=secret, parent_pid=parent)


def fits(extra: Sequence[str]) -> bool:
    """Whether it can fork for a SuperNode with these further words: not one whose owner has arranged for an executor.

    Windows cannot fork; on a Mac the system's libraries do not survive it.
    """
    return sys.platform == "linux" and not any(word.startswith(OTHERWISE) for word in extra)


def without_isolation(extra: Sequence[str]) -> list[str] | None:
    """The further words without a wish for a new Python for every message; None where they arrange for an executor."""
    words = [word for word in extra if word != "--isolation=subprocess"]
    if "--isolation" in words and words[words.index("--isolation") + 1 :][:1] == ["subprocess"]:
        place = words.index("--isolation")
        words = words[:place] + words[place + 2 :]
    return None if any(word.startswith(OTHERWISE) for word in words) else words


if __name__ == "__main__":
    main()
