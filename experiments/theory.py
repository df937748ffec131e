"""The error of personal models as their data grow, beside the rate of the paper's theorem 1: docs/theory.md.

python experiments/theory.py [--out-dir runs/theory] [--picture docs/images/theory.png]
"""

import argparse
import math
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from client_app.data.functions import NOISE, truth
from fedbayes import Personal
from server_app.runs import read_config

SIZES = (25, 50, 100, 200, 400, 800, 1600)
CLIENTS, SEED, DRAWS = 10, 1, 20
WORDS = f"dataset=functions model=mlp noise={NOISE} zeta=1 rho-init=-4 lr-personal=0.003 lr-global=0.003 rounds=300"
RATE = -2 / 3  # −2β/(2β + d) for β = d = 1
METHODS = {"pfedbayes": "pFedBayes, personal", "local": "training alone"}


def run(name: str, method: str, n: int, out_dir: Path) -> None:
    config = read_config(out_dir / name)
    if config and config["state"] == "finished":
        return
    command = [
        sys.executable,
        "-m",
        "fedbayes.command",
        "run",
        *WORDS.split(),
        f"method={method}",
        f"size={n}+200",
    ]
    command += [
        "eval-every=100",
        f"seed={SEED}",
        f"run-name={name}",
        f"out-dir={out_dir}",
        "--clients",
        str(CLIENTS),
    ]
    subprocess.run(command, check=True)


def errors(name: str, out_dir: Path) -> tuple[float, float]:
    """Of all clients' models: the mean squared distance to f_i, and the paper's Hellinger distance d², over q and x."""
    x = np.linspace(-1, 1, 2001)
    squared, hellinger = [], []
    for client in range(CLIENTS):
        personal = Personal.load(out_dir / "state" / name / str(client))
        means = personal.forecast(x[:, None].astype(np.float32), DRAWS).means.numpy()
        gaps = (means - truth(x, client, SEED)) ** 2
        squared.append(gaps.mean())
        hellinger.append((1 - np.exp(-gaps / (8 * NOISE**2))).mean())
    return float(np.mean(squared)), float(np.mean(hellinger))


def slope(values: list[float]) -> float:
    """Of log value by log n, least squares."""
    return float(np.polyfit(np.log(SIZES), np.log(values), 1)[0])


def picture(found: dict[str, list[tuple[float, float]]], file: Path) -> None:
    figure, axis = plt.subplots(figsize=(6, 3.8), constrained_layout=True)
    for (method, title), colour in zip(METHODS.items(), ("C0", "C2"), strict=True):
        values = [squared for squared, _ in found[method]]
        axis.loglog(SIZES, values, f"{colour}o-", label=f"{title}: slope {slope(values):.2f}")
    middle = math.exp(np.mean([math.log(squared) for squared, _ in found["pfedbayes"]]))
    centre = math.exp(np.mean(np.log(SIZES)))
    line = [middle * (n / centre) ** RATE for n in SIZES]
    axis.loglog(SIZES, line, "k--", label=f"the paper's rate: {RATE:.2f}")
    axis.set(xlabel="n, training examples of a client", ylabel="mean squared distance to f_i")
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out-dir", type=Path, default=Path("runs/theory"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/theory.png"))
    arguments = parser.parse_args()
    out_dir = arguments.out_dir.resolve()
    found: dict[str, list[tuple[float, float]]] = {}
    for method in METHODS:
        for n in SIZES:
            run(f"{method}-{n}", method, n, out_dir)
        found[method] = [errors(f"{method}-{n}", out_dir) for n in SIZES]
    print("| n | " + " | ".join(f"{title}: L² | d²" for title in METHODS.values()) + " |")
    print("|---|" + "---|---|" * len(METHODS))
    for place, n in enumerate(SIZES):
        cells = [f"{value:.4f}" for method in METHODS for value in found[method][place]]
        print(f"| {n} | {' | '.join(cells)} |")
    slopes = [f"{slope([pair[k] for pair in found[method]]):.2f}" for method in METHODS for k in (0, 1)]
    print(f"| slope | {' | '.join(slopes)} |")
    picture(found, arguments.picture)


if __name__ == "__main__":
    main()
