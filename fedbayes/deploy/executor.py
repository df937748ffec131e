"""Carries out a site's messages, each in a process of its own, forked from one that has imported PyTorch already.

Flower starts a new Python for every message, whose imports alone take seconds of processor time. So `fedbayes site`
runs Flower's SuperExec as `python -m fedbayes.deploy.executor ADDRESS PARENT SECRET`. It forks once, before Flower is
imported: the second process imports what is the same for every run, and forks again for each message. The app itself
comes with the run; every message imports it anew, from the bundle that the coordinator has sent.

A process that has used a GPU stays and takes the next message too (resident.py): its context on the device took seconds
to make.
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedbayes.deploy import resident
from fedbayes.launch.app_bundle import PACKAGES

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult

CLIENT_APP = "flwr.supernode.cli.flwr_clientapp"
IMPORTED = (
    CLIENT_APP, "torch", "torch.fx.experimental.symbolic_shapes",  # the latter by the first torch.autograd.grad
    "safetensors.torch", "sklearn.datasets",
)  # fmt: skip
OTHERWISE = (
    "--isolation",
    "--host",
    "--port",
    "--ssl-",
    "--superexec-",
)  # what a SuperNode is told of its executor


def command(address: str, secret: Path) -> list[str]:
    """The SuperExec of a SuperNode, both started by the process that this one is going to be."""
    return [sys.executable, "-P", "-m", "fedbayes.deploy.executor", address, str(os.getpid()), str(secret)]


def main() -> None:
    address, parent, secret = sys.argv[1:]
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        wait_for_messages(theirs)
    else:
        theirs.close()
        run_superexec(address, int(parent), ours, Path(secret).read_bytes())


def wait_for_messages(requests: socket.socket) -> None:
    """Ends with the SuperExec, which closes its end of the socket then. A child carries out one message and ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the SuperExec, which tells its ClientApps
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start threads now, which a fork does not copy
    for module in IMPORTED:
        importlib.import_module(module)
    for module in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[module]  # the site's own fedbayes may be another version than the run's
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


def run_superexec(address: str, parent: int, requests: socket.socket, secret: bytes) -> None:
    """Flower's own loop, which ends with its parent."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import LaunchResult, SubprocessExecutor

    class Forking(SubprocessExecutor):
        def launch(self, spec: "ExecutionSpec") -> "LaunchResult":
            words = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token, "--insecure"]
            words += ["--parent-pid", str(os.getpid())]
            try:
                if spec.task_type is TaskType.CLIENT_APP:
                    requests.sendall(f"{json.dumps(words)}\n".encode())
                    return LaunchResult.accepted()
            except OSError:
                pass  # the other process was killed; Flower's way is slower and needs nobody
            return super().launch(spec)

        def close(self) -> None:
            requests.close()

    superexec = importlib.import_module("flwr.supercore.superexec.run_superexec")
    superexec.get_executor = lambda *_, **__: Forking()  # type: ignore[attr-defined]
    superexec.run_superexec(address, insecure=True, superexec_auth_secret=secret, parent_pid=parent)


def fits(extra: Sequence[str]) -> bool:
    """Whether it can serve a SuperNode with these further words: not one whose owner has arranged for an executor.

    Windows cannot fork; on a Mac the system's libraries do not survive it.
    """
    return sys.platform == "linux" and not any(word.startswith(OTHERWISE) for word in extra)


if __name__ == "__main__":
    main()
