"""Watches a site's processes, Flower's SuperNode and its executor, and starts again what has ended or lost its way.

`fedbayes site` becomes `python -m fedbayes.deploy.supervise PLAN`. Flower's SuperNode gives up for good after a failed
TLS handshake, but lives on; without its executor it takes messages and answers none. Neither would make a restart
policy fire. So the executor is started again when it ends; the SuperNode when it ends after it had been at work, and
when it has had no connection for a while although the coordinator answers. One that is refused before it was ever at
work, or for two minutes, ends the site, with its reason: trying again would not help.

On Linux the parts are forks of this process, which imports Flower for all of them.
"""

import gc
import importlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

import psutil

from fedbayes.deploy.forked import Forked, end_with_parent

POLL = 1.0
AT_WORK = 15.0  # seconds with a connection, after which a SuperNode has been taken in
LOST = 15.0  # seconds without one, after which it has lost its way if the coordinator answers
NEVER = 60.0  # the same of one that was not yet at work: a busy machine is slow to start it
REFUSED = 120.0  # seconds of ends, one after the other, after which a SuperNode is not wanted any more
FAREWELL = 20.0  # seconds for the last words
PROBE = 3.0  # seconds for a coordinator to answer
DAY = 24 * 3600.0  # seconds between two looks at the certificates
SOON, LATE = 1.0, 20.0  # the first and the longest pause before a new start
CLOCK = (
    "The SuperNode ended by itself and gave no reason. The likely cause is this machine's clock: Flower takes messages "
    "only of sites whose clock is at most 5 s ahead and 305 s behind the coordinator's. Set it, and start the site "
    "again."
)


@dataclass
class Part:
    """One of the processes, with the pause before its next start."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | Forked | None = None
    pause: float = SOON
    due: float = 0.0  # when it is to be started
    started: float = 0.0
    run: Callable[[], None] | None = None  # what the command does, where it can be done by a fork

    @property
    def status(self) -> int | None:
        return self.process.poll() if self.process else None

    def start(self) -> None:
        if self.run is not None:
            names = {"SuperNode": "flower-supernode", "executor": "fedbayes-executor"}
            words = list(self.command)
            words = words[words.index("-m") + 1 :] if words[1:3] == ["-P", "-m"] else words
            self.process = Forked(names[self.name], self.run, words)
        else:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent
            )
        self.started = time.monotonic()

    def again(self, why: str, soon: bool = False) -> None:
        """Start it anew after a pause, which doubles as long as it does not stay."""
        now = time.monotonic()
        self.pause = SOON if soon or now - self.started > 3 * LATE else min(2 * self.pause, LATE)
        self.process, self.due = None, now + self.pause
        say(f"{why}; the {self.name} is started again in {self.pause:g} s.")

    def end(self, patience: float = FAREWELL) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Site:
    """The processes of one site; `run` returns its exit status."""

    node: Part
    executor: Part | None
    address: str
    authority: str
    stopped: int = 0  # the signal that ends it
    worked: bool = False  # whether a SuperNode has ever been taken in
    connected: float = 0.0  # seconds for which this SuperNode has had a connection
    lost: float = 0.0  # for which it has had none since
    failing: float = 0.0  # since when SuperNodes end without having been at work
    away: bool = False  # whether the coordinator did not answer when the last SuperNode ended
    checked: float = field(default_factory=time.monotonic)  # when certificates were last looked at

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            while not self.stopped:
                if (status := self._look()) is not None:
                    return status
                time.sleep(POLL)
        finally:
            for part in filter(None, (self.node, self.executor)):
                part.end()
        return self.node.status or 0

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = number

    def _look(self) -> int | None:
        """Start what is due, and see to what has ended; the site's exit status where it is over."""
        if time.monotonic() - self.checked > DAY:
            self.checked = time.monotonic()
            self._warn()
        for part in filter(None, (self.node, self.executor)):
            if part.process is None and (
                time.monotonic() >= part.due or (part is self.node and self._back())
            ):
                part.start()
        if self.executor and self.executor.status is not None:
            self.executor.again(f"The executor has ended (status {self.executor.status})")
        if (status := self.node.status) is not None:
            return self._node_ended(status)
        if self.node.process is not None:
            self._watch_connection(self.node.process.pid)
        return None

    def _warn(self) -> None:
        """Of certificates that expire soon; at the start, `fedbayes site` has done so."""
        from fedbayes.deploy.renewal import warnings

        for words in warnings(Path(self.authority).parent):
            say(f"Warning: {words}")

    def _node_ended(self, status: int) -> int | None:
        """Start it anew where that helps; else the site's exit status.

        Flower ends without a reason (status 0) for a wrong clock, and for a network that fails in its first words; it
        gives up at the next start too then, but the coordinator does not answer either.
        """
        if self.connected < AT_WORK:
            self.failing = self.failing or time.monotonic()
        cut_off = not answers(self.address, self.authority, PROBE)
        refused = self.failing and time.monotonic() - self.failing > REFUSED
        if (self.worked or cut_off) and not refused:
            self._begin_anew(f"The SuperNode has ended (status {status})")
            return None
        if status == 0 and not cut_off:
            say(CLOCK)
        return status or 1

    def _watch_connection(self, pid: int) -> None:
        if is_connected(pid, int(self.address.rpartition(":")[2])):
            self.connected, self.lost = self.connected + POLL, 0.0
            if self.connected >= AT_WORK:
                self.worked, self.failing = True, 0.0
            return
        self.lost += POLL
        if self.lost >= (LOST if self.worked else NEVER) and answers(self.address, self.authority):
            self.node.end(2.0)
            # It was waited for already, so that this cannot happen faster than it helps.
            self._begin_anew(
                f"No connection for {self.lost:.0f} s, although the coordinator answers", soon=True
            )

    def _begin_anew(self, why: str, soon: bool = False) -> None:
        self.node.again(why, soon)
        self.connected = self.lost = 0.0
        self.away = not answers(self.address, self.authority, PROBE)

    def _back(self) -> bool:
        """Whether a coordinator that was away answers again: then no pause is waited for."""
        if self.away and answers(self.address, self.authority, PROBE):
            self.away = False
            return True
        return False


def is_connected(pid: int, port: int) -> bool:
    """Whether a process has a connection to this port of another machine."""
    with suppress(psutil.Error, OSError):
        return any(
            one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED
            for one in psutil.Process(pid).net_connections("tcp")
        )
    return False


def handshake(address: str, authority: str, seconds: float = 10.0) -> None:
    """A TLS handshake as a site's; OSError, of which ssl.SSLError is one, where it fails."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    name = host.strip("[]")
    with (
        socket.create_connection((name, int(port)), timeout=seconds) as plain,
        context.wrap_socket(plain, server_hostname=name),
    ):
        return


def answers(address: str, authority: str, seconds: float = 10.0) -> bool:
    try:
        handshake(address, authority, seconds)
    except (OSError, ValueError):
        return False
    return True


def say(words: str) -> None:
    print(words, flush=True)


def imported(trust: str) -> dict[str, Callable[[], None]]:
    """What the parts do, with Flower imported already, where they can be forks; nothing where they cannot."""
    if sys.platform != "linux":
        return {}
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start threads now, which a fork does not copy
    from fedbayes.deploy import executor, supernode
    from fedbayes.deploy.bundles import Trust

    for module in (executor.CLIENT_APP, executor.SUPEREXEC, "flwr.supernode.cli"):
        importlib.import_module(module)
    gc.freeze()  # what is never looked at again stays shared
    return {"node": partial(supernode.main, Trust.read(trust)), "executor": executor.main}


def main() -> None:
    plan = json.loads(sys.argv[1])
    if plan.get("log") == "json":
        from fedbayes.deploy.log_lines import turn_output

        turn_output()
    run = imported(plan["trust"])
    node = Part("SuperNode", plan["node"], run=run.get("node"))
    executor = Part("executor", plan["executor"], run=run.get("executor")) if plan["executor"] else None
    sys.exit(Site(node, executor, plan["address"], plan["authority"]).run())


if __name__ == "__main__":
    main()
