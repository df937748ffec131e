"""The table of docs/methods.md: every method on MNIST medium, tuned on validation data with the same budget.

    python experiments/methods.py --data-dir DIR [--only fedavg,ditto] [--out-dir runs/methods]

Four points of 30 rounds for each method, judged by the NLL of validation data (`fedbayes tune`); the best of them runs
for 100 rounds on all training data, and the best five methods with three seeds. Then the clustered methods on MNIST
small whose images are upright or upside down. Started again, it goes on; what is finished is not run again.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import strategies
from client_app.data import load
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.protocol.streams import seed_of
from server_app.stored import read_config, read_rows

TUNED, LONG, BEST, SEEDS = 30, 100, 5, (1, 2, 3)
ADAM, SGD = "optimizer=adam lr-global=0.001,0.003", "optimizer=sgd lr-global=0.03,0.1"
BAYES = ["zeta=2.5,10 personal-steps=1,5"]
CLUSTERED = ("cfedbayes", "ifca", "fesem", "fedcfl", "fedavg")
GRIDS = {  # four points each
    "pfedbayes": BAYES,
    "sfedbayes": BAYES,
    "cfedbayes": BAYES,
    "fedavg": [ADAM, SGD],
    "fedprox": ["optimizer=adam proximal=0.001,0.1", "optimizer=sgd lr-global=0.1 proximal=0.001,0.1"],
    "finetune": [ADAM, SGD],
    "perfedavg": ["perfedavg.lr=0.01,0.1 perfedavg.lr-adapt=0.01,0.1"],
    "pfedme": ["pfedme.lr=0.01,0.05 pfedme.lr-personal=0.01,0.05"],
    "ditto": ["ditto.penalty=0.1,1 lr-personal=0.001,0.003"],
    "apfl": ["apfl.lr=0.03,0.1 apfl.mixture=0.25,0.75"],
    "fedper": [ADAM, SGD],
    "fedrep": [ADAM, SGD],
    "fedamp": ["fedamp.penalty=0.05,0.2 fedamp.sigma=10,100"],
    "heurfedamp": ["fedamp.penalty=0.05,0.2 heurfedamp.sharpness=25,100"],
    "fedpa": ["fedpa.lr=0.03,0.1 fedpa.shrinkage=0.01,1"],
    "bnfed": ["bnfed.lr=0.1,0.5 bnfed.neuron-prior=1,10"],
    "pfedgp": ["pfedgp.lr=0.01,0.05 pfedgp.inner-steps=1,3"],
    "pfedvem": ["pfedvem.head-steps=10,20 lr-personal=0.001,0.003"],
    "ifca": [ADAM, SGD],
    "fesem": [ADAM, SGD],
    "fedcfl": [ADAM, SGD],
    "local": [ADAM, SGD],
}
PAPER = {  # MNIST medium of the paper's table 1, 800 rounds: PM, GM
    "pfedbayes": (97.43, 92.61),
    "fedavg": (None, 90.60),
    "fedprox": (None, 90.66),
    "bnfed": (None, 80.02),
    "fedpa": (None, 92.31),
    "perfedavg": (95.19, None),
    "pfedme": (95.31, 90.60),
    "heurfedamp": (94.74, None),
    "pfedgp": (91.96, None),
}


@dataclass(frozen=True)
class Bench:
    """Where the data are, and the runs."""

    data: str
    out: Path

    def call(self, *words: str) -> bool:
        command = [sys.executable, "-m", "fedbayes.cli", *words, "dataset=mnist", f"data-dir={self.data}"]
        print("$ fedbayes", *words, flush=True)
        return subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0

    def tuned(self, method: str) -> list[str]:
        """The words of the best of its points, by validation data."""
        found = []
        for number, grid in enumerate(GRIDS[method]):
            name = f"{method}-{number}"
            fixed = [f"rounds={TUNED}", f"eval-every={TUNED}", "size=medium", f"out-dir={self.out}"]
            file = self.out / f"{name}-tune" / "tune.json"
            if not file.exists() or len(json.loads(file.read_text())["points"]) < 4 // len(GRIDS[method]):
                self.call("tune", f"method={method}", *grid.split(), *fixed, f"run-name={name}")
            best = json.loads(file.read_text())["best"].get(method)
            if best is not None:
                constant = [word for word in grid.split() if "," not in word]
                chosen = [f"{key}={value}" for key, value in best["values"].items() if key != "method"]
                found.append((best["value"], [*constant, *chosen]))
        return min(found)[1]

    def run(self, name: str, *words: str) -> dict[str, str]:
        """The last row of the run with these words, which may be there already."""
        folder = self.out / name
        state = read_config(folder).get("state") if (folder / "config.json").exists() else None
        if state is None:
            self.call("run", *words, f"run-name={name}", f"out-dir={self.out}")
        elif state != "finished":
            self.call("run", "--resume", name, f"out-dir={self.out}")
        return read_rows(folder / "rounds.csv")[-1]

    def long(self, method: str, seed: int = 1) -> dict[str, str]:
        words = [f"method={method}", *self.tuned(method), "size=medium", f"rounds={LONG}", f"seed={seed}"]
        return self.run(f"{method}-seed{seed}", *words, f"eval-every={LONG}")


def milliseconds(method: str, words: list[str], data: str) -> float:
    """Processor time of one client's training in a round, on one thread: the median of five, after two."""
    torch.set_num_threads(1)
    given = {"method": method, "dataset": "mnist", "size": "medium", "data-dir": data}
    settings = Settings.parse(defaults() | given | dict(word.split("=", 1) for word in words))
    mine = load(settings, 0, 10)

    def network(*others: int | str) -> torch.nn.Module:
        return build("dnn", mine.x_train.shape[1:], 10, seed_of(1, *others) if others else 1)

    half = importlib.import_module(f"client_app.methods.{method}").METHOD
    client = half(settings, network(), mine.x_train, mine.y_train, "0", torch.device("cpu"))
    kind = strategies.load(method)
    server = kind(kind.reads.parse(settings.as_config()))

    def fresh(*others: int | str) -> Tensor:
        return server.weights_of(network(*others))

    received = dict(server.send(server.init(fresh), "0"))
    state, times = client.start(received), []
    for number in range(1, 8):
        began = time.process_time()
        state = client.train(state, received, number).state
        times.append(time.process_time() - began)
    return 1000 * statistics.median(times[2:])


def figure(row: dict[str, str], column: str, scale: float = 1, digits: int = 3) -> str:
    return f"{scale * float(row[column]):.{digits}f}" if row.get(column) else "–"


def score(row: dict[str, str]) -> float:
    return float(row["pm_accuracy"] or row["gm_accuracy"] or 0)


def spread(rows: list[dict[str, str]], column: str) -> str:
    found = [100 * float(row[column]) for row in rows if row[column]]
    if not found:
        return "–"
    sd = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.2f}{sd}"


def table(bench: Bench, methods: list[str]) -> None:
    rows = {method: [bench.long(method)] for method in methods}
    for method in sorted(rows, key=lambda method: -score(rows[method][0]))[:BEST]:
        rows[method] += [bench.long(method, seed) for seed in SEEDS[1:]]
    print(
        "\n| method | PM | GM | ECE | NLL | MB a round, up / down | ms a client's round | paper: PM / GM | settings |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for method in sorted(rows, key=lambda method: -statistics.fmean(map(score, rows[method]))):
        last, model = rows[method][0], "pm" if rows[method][0]["pm_accuracy"] else "gm"
        words = bench.tuned(method)
        paper = " / ".join(
            "–" if value is None else f"{value:.2f}" for value in PAPER.get(method, (None, None))
        )
        print(
            f"| `{method}` | {spread(rows[method], 'pm_accuracy')} | {spread(rows[method], 'gm_accuracy')} "
            f"| {figure(last, f'{model}_ece')} | {figure(last, f'{model}_nll')} "
            f"| {figure(last, 'bytes_up', 1e-6, 1)} / {figure(last, 'bytes_down', 1e-6, 1)} "
            f"| {milliseconds(method, words, bench.data):.0f} | {paper} | `{' '.join(words)}` |"
        )


def clusters(bench: Bench, methods: list[str]) -> None:
    print("\n| method | adjusted Rand | GM | PM | NLL of GM |\n|---|---|---|---|---|")
    for method in methods:
        words = [f"method={method}", "layout=rotated", "groups=2", "size=small", f"rounds={LONG}"]
        row = bench.run(f"rotated-{method}", *words, f"eval-every={LONG}")
        print(
            f"| `{method}` | {figure(row, 'adjusted_rand', 1, 2)} | {figure(row, 'gm_accuracy', 100, 2)} "
            f"| {figure(row, 'pm_accuracy', 100, 2)} | {figure(row, 'gm_nll')} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--out-dir", type=Path, default=Path("runs/methods"))
    parser.add_argument("--only", default=",".join(GRIDS), help="methods with commas between")
    given = parser.parse_args()
    wanted = given.only.split(",")
    if unknown := [method for method in wanted if method not in GRIDS]:
        parser.error(f"There is no method {', '.join(unknown)}; there are {', '.join(GRIDS)}.")
    bench = Bench(str(Path(given.data_dir).resolve()), given.out_dir.resolve())
    table(bench, wanted)
    clusters(bench, [method for method in CLUSTERED if method in wanted])


if __name__ == "__main__":
    main()
