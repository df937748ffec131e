"""A real simulation, `fedbayes run`, watched from outside: when its rounds ended, and what its processes used.

Processes are told apart by what they are for, so that one sees where the time goes that is not the clients' own.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.measure import Options
from fedbayes.launch.engines import EMBEDDED, FLOWER, engine_for
from fedbayes.launch.processes import members
from fedbayes.launch.ready import ready
from server_app.events import parse

WORKER, SERVER, RAY, OTHERS = "workers", "server", "Ray", "others"
STEADY = (
    4  # the first round of the steady state: a worker has met its clients, and round 1 has been evaluated
)
BETWEEN = 0.5  # seconds from one look at the processes to the next


@dataclass(frozen=True)
class Look:
    """At one moment: processor seconds so far of all processes of a kind, and the memory of the largest of them."""

    time: float
    processor: Mapping[str, float]
    memory: Mapping[str, float]  # MB, resident


@dataclass(frozen=True)
class Watched:
    """When the rounds ended, what their processes used, and how long the evaluation took that ends the run."""

    ends: Mapping[int, float]  # by round
    looks: Sequence[Look]
    evaluation: float  # seconds
    seconds: float  # from the command to its end

    def round_times(self) -> list[float]:
        """Seconds of each round from the end of the one before, from `STEADY` on."""
        return [end - self.ends[number - 1] for number, end in self.ends.items() if number >= STEADY]

    def peak(self, kind: str) -> float:
        return max(look.memory.get(kind, 0.0) for look in self.looks)

    def memory_at(self, kind: str, first: int, last: int) -> float:
        """The largest of a kind during these rounds, MB."""
        since, until = self.ends[first], self.ends[last]
        looks = [look for look in self.looks if since <= look.time <= until + BETWEEN]
        return max((look.memory.get(kind, 0.0) for look in looks), default=float("nan"))

    def processor(self, kind: str) -> float:
        """Seconds a round of all processes of a kind, from `STEADY` on."""
        first, last = STEADY - 1, max(self.ends)
        inside = [look for look in self.looks if self.ends[first] <= look.time <= self.ends[last]]
        if len(inside) < 2:
            return float("nan")
        before, after = inside[0], inside[-1]
        spent = after.processor.get(kind, 0.0) - before.processor.get(kind, 0.0)
        rounds = (last - first) * (after.time - before.time) / (self.ends[last] - self.ends[first])
        return spent / rounds


def watch(
    options: Options,
    clients: int,
    rounds: int,
    engine: str = EMBEDDED,
    address: str | None = None,
    **words: object,
) -> Watched:
    """A run with these settings on MNIST, evaluated at the start and at the end; its folder is deleted afterwards."""
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, object] = {"dataset": "mnist", "data-dir": str(options.data_dir)}
        settings |= {key.replace("_", "-"): value for key, value in words.items()}
        settings |= {"rounds": rounds, "eval-every": 10 * rounds, "run-name": "bench", "out-dir": folder}
        plan = ready(settings, clients)
        plan.folder.mkdir()
        carrier = engine_for(plan, engine, address)
        looks: list[Look] = []
        ends: dict[int, float] = {}
        evaluated = float("nan")  # when the last time
        over = threading.Event()
        processes = _children if engine != FLOWER else partial(members, carrier.marker)
        watcher = threading.Thread(target=_look, args=(processes, looks, over))
        try:
            carrier.start()
            watcher.start()
            for line in carrier.lines():
                event = parse(line)
                if event and event["event"] == "round":
                    ends[event["round"]] = event["time"]
                elif event and event["event"] == "evaluated":
                    evaluated = event["time"]
            if len(ends) < rounds or evaluated < ends[rounds]:
                raise RuntimeError((plan.folder / "log.txt").read_text("utf-8")[-3000:])
        finally:
            over.set()
            carrier.end()
    return Watched(ends, looks, evaluated - ends[rounds], time.time() - began)


def _children() -> list[psutil.Process]:
    """Of the other engines, which are started by this process. (A cluster's actors are not.)"""
    return list(psutil.Process().children(recursive=True))


def _look(search: Callable[[], list[psutil.Process]], looks: list[Look], over: threading.Event) -> None:
    processes: list[psutil.Process] = []
    memory: dict[str, float] = {}
    while not over.wait(BETWEEN):
        # A search goes through all processes of the machine. The workers are the last to come.
        if WORKER not in memory or len(looks) % 20 == 0:
            processes = search()
        processor: dict[str, float] = {}
        memory = {}
        for process in processes:
            try:
                kind = _kind(process)
                used = process.cpu_times()
                resident = process.memory_info().rss / 2**20
            except psutil.Error:
                continue  # ended meanwhile
            processor[kind] = processor.get(kind, 0.0) + used.user + used.system
            memory[kind] = max(memory.get(kind, 0.0), resident)
        looks.append(Look(time.time(), processor, memory))


def _kind(process: psutil.Process) -> str:
    """Under Flower, the server and the grid are threads of one process, `flwr-simulation`."""
    if process.name().startswith("fedbayes-"):
        return {"fedbayes-worker": WORKER, "fedbayes-server": SERVER}.get(process.name(), OTHERS)
    words = " ".join(process.cmdline())
    if words.startswith("ray::ClientAppActor"):
        return WORKER
    if "flwr-simulation" in words.split("--")[0]:
        return SERVER
    name = Path(words.split(" ")[0]).name
    return (
        RAY if words.startswith("ray::") or "/ray/" in words or name in ("raylet", "gcs_server") else OTHERS
    )
