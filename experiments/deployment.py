"""Time per round over the network against the simulation, and where it goes (docs/deploy.md).

    python experiments/deployment.py [--rounds 20]

Starts a coordinator and three sites on this machine with the commands of docs/deploy.md, trains the same run on them,
alone and beside a second one, and in a simulation, sees that the figures are the same, and stops everything.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from fedbayes.deploy.executor import IMPORTED
from fedbayes.launch.flower import free_port
from server_app.stored import read_rows

SITES = 3
MEASURED = ("pm_accuracy", "gm_accuracy")
IMPORTS = f"import {', '.join(IMPORTED)}"  # what a new Python for a message would begin with


def fedbayes(*words: str) -> list[str]:
    return [sys.executable, "-m", "fedbayes.cli", *words]


@contextmanager
def background(command: list[str], folder: Path, until: str) -> Iterator[None]:
    """A command that has said `until`, ended when it is no longer needed."""
    with tempfile.TemporaryFile("w+b") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            while until not in (said := os.pread(log.fileno(), 1 << 20, 0).decode("utf-8", "replace")):
                if process.poll() is not None:
                    sys.exit(said)
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def train(folder: Path, rounds: int) -> float:
    """The same run three times: runs/network, runs/beside with another one at the same time, and runs/simulation.

    Returns how long sites were at work for a round of the first.
    """
    fleet, control = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    subprocess.run(
        fedbayes("keys", "keys", "--host", "127.0.0.1", "--sites", str(SITES)), cwd=folder, check=True
    )
    settings = ["dataset=digits", f"rounds={rounds}", "eval-every=5"]
    with ExitStack() as stack:
        command = fedbayes("coordinator", "keys/coordinator", "--listen", fleet, "--control", control)
        stack.enter_context(background(command, folder, "may take part"))
        for site in range(SITES):
            words = ["--at", fleet, "--share", f"{site}/{SITES}", "--log-file", f"site-{site}.log"]
            stack.enter_context(
                background(fedbayes("site", f"keys/site-{site}", *words), folder, "SuperNode ID")
            )
        run = fedbayes("run", "--on", "lan", *settings)
        subprocess.run([*run, "run-name=network"], cwd=folder, check=True)
        lines = [(folder / f"site-{site}.log").read_text().splitlines() for site in range(SITES)]
        other = subprocess.Popen([*run, "run-name=other", "seed=2"], cwd=folder)
        subprocess.run([*run, "run-name=beside"], cwd=folder, check=True)
        assert other.wait() == 0
    words = ["run-name=simulation", "--clients", str(SITES), *settings]
    subprocess.run(fedbayes("run", *words), cwd=folder, check=True)
    return at_work(lines)


def seconds_of(folder: Path, run: str) -> float:
    """The median round, without the first, which prepares."""
    return median(float(row["seconds"]) for row in read_rows(folder / "runs" / run / "rounds.csv")[2:])


def at_work(lines: list[list[str]]) -> float:
    """The median round of the slowest site, from sites' logs: from the message in its hands to the reply in them."""
    found = [
        [float(one[1]) for line in site if (one := re.search(r"  ([\d.]+) s  ", line))] for site in lines
    ]
    return median(map(max, zip(*found, strict=True)))


def imports() -> float:
    """Until so many ClientApps at once have imported what they need."""
    times = []
    for _ in range(3):
        began = time.monotonic()
        started = [subprocess.Popen([sys.executable, "-c", IMPORTS]) for _ in range(SITES)]
        assert not any(process.wait() for process in started)
        times.append(time.monotonic() - began)
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FLWR_HOME"] = str(folder / "flower")
        work = train(folder, rounds)
        network, beside, other, simulation = (
            seconds_of(folder, run) for run in ("network", "beside", "other", "simulation")
        )
        start = imports()
        last = [
            read_rows(folder / "runs" / run / "rounds.csv")[-1] for run in ("network", "beside", "simulation")
        ]
    same = [[row[column] for column in MEASURED] for row in last]
    alike = "the same" if same[0] == same[1] == same[2] else "OTHERS"
    print(f"PM and GM after {rounds} rounds: {same[0]}, {same[1]} and {same[2]}, {alike}")
    print("| seconds per round (median) | simulation | over the network |\n|---|---|---|")
    print(f"| in all | {simulation:.2f} | {network:.2f} |")
    print(f"| two runs at once, each | | {beside:.2f} and {other:.2f} |")
    print(f"| the work: evaluate, train, save | | {work:.2f} |")
    print(f"| waiting for Flower's polls, forking, sending | | {network - work:.2f} |")
    print(f"| saved by forking: imports at {SITES} sites at once | | {start:.2f} |")


if __name__ == "__main__":
    main()
