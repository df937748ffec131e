"""The engines: from the command to the first row and from the last to the end, and rounds without any computing.

The whole command in a process of its own, on the digits with ten clients: `fedbayes run`, the same with `--engine
flower`, and with `--engine ray` on a cluster that is this machine and was started before. Then ten clients that compute
nothing and send back what they received, MNIST's network: what a round takes is what carries it, the clients' files and
the server's own work included.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster import address_for
from benchmarks.measure import Measurement, Options
from benchmarks.watch import watch
from fedbayes.launch.engines import EMBEDDED, FLOWER, RAY
from server_app.events import parse

TITLE = "The engines: start, end, and rounds of ten clients that compute nothing"
TAKES_MNIST = True
ONLY_WITH_MNIST = "the rounds of clients that compute nothing"
ENGINES = (EMBEDDED, FLOWER, RAY)
CLIENTS, ROUNDS = 10, 20


@dataclass(frozen=True)
class Timed:
    """Seconds of one command: until the first row of rounds.csv is measured, of the rounds after it, and to its end."""

    first: float
    rounds: float
    last: float

    @property
    def whole(self) -> float:
        return self.first + self.rounds + self.last


def run(options: Options) -> list[Measurement]:
    return commands(options) + trivial_rounds(options)


def run_without_mnist(options: Options) -> list[Measurement]:
    return commands(options)


def commands(options: Options) -> list[Measurement]:
    """Start, rounds and end of the command, on the digits, which are always there."""
    taken: dict[str, list[Timed]] = {engine: [] for engine in ENGINES}
    for _ in range(5 if options.full else 2):  # in turn
        for engine, timed in taken.items():
            with address_for(engine) as address:
                timed.append(command(engine, address))
    rows = []
    for part, title in (
        ("first", "to the first row"), ("rounds", f"{ROUNDS} rounds"), ("last", "after them"), ("whole", "in all")
    ):  # fmt: skip
        values = {engine: min(getattr(one, part) for one in timed) for engine, timed in taken.items()}
        for engine, value in values.items():
            rows.append(Measurement(f"{engine}: {title}", value, "s", {"÷ flower": value / values[FLOWER]}))
    return rows


def trivial_rounds(options: Options) -> list[Measurement]:
    """Rounds of clients that send back what they received."""
    count, method = 60 if options.full else 20, "benchmarks.trivial"
    rounds = {}
    for engine in ENGINES:
        with address_for(engine) as address:
            watched = watch(options, CLIENTS, count, engine, address, method=method)
        rounds[engine] = statistics.median(watched.round_times())
    title = f"a round of {CLIENTS} clients that compute nothing"
    return [
        Measurement(f"{engine}: {title}", 1e3 * seconds, "ms", {"÷ flower": seconds / rounds[FLOWER]})
        for engine, seconds in rounds.items()
    ]


def command(engine: str, address: str | None = None) -> Timed:
    with tempfile.TemporaryDirectory() as folder:
        words = ["dataset=digits", f"rounds={ROUNDS}", "run-name=bench", f"out-dir={folder}"]
        words += [
            f"--clients={CLIENTS}",
            f"--engine={engine}",
            *([f"--address={address}"] if address else []),
        ]
        began = time.time()
        done = subprocess.run(
            [sys.executable, "-m", "fedbayes.cli", "run", *words],
            env=dict(os.environ), capture_output=True, text=True,
        )  # fmt: skip
        ended = time.time()
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        lines = (Path(folder) / "bench" / "log.txt").read_text("utf-8").splitlines()
    events = [event for line in lines if (event := parse(line))]
    first = next(event["time"] for event in events if event["event"] == "evaluated")
    last = max(event["time"] for event in events if event["event"] == "round")
    return Timed(first - began, last - first, ended - last)
