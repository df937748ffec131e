"""The README's table and picture: runs what is missing, then reads the run folders.

python experiments/readme.py --data-dir DIR [--out-dir runs/readme]
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from server_app.runs import read_config, read_rows

MNIST = "dataset=mnist size=medium rounds=100"
FMNIST = "dataset=fmnist size=small rounds=150"
SGD = "optimizer=sgd lr-global=0.01"
RUNS = {  # name: (title, what is added to `fedbayes run`)
    "fmnist-pfedbayes": ("pFedBayes", FMNIST),
    "fmnist-fedavg-sgd": ("FedAvg (SGD 0.01, the paper's)", f"{FMNIST} method=fedavg {SGD}"),
    "fmnist-fedavg": ("FedAvg (Adam 0.001)", f"{FMNIST} method=fedavg"),
    "fmnist-local": ("local (Adam 0.001)", f"{FMNIST} method=local"),
    "mnist-pfedbayes": ("pFedBayes", f"{MNIST} personal-steps=5"),
    "mnist-fedavg-sgd": ("FedAvg (SGD 0.01, the paper's)", f"{MNIST} method=fedavg {SGD}"),
    "mnist-fedavg": ("FedAvg (Adam 0.001)", f"{MNIST} method=fedavg"),
    "mnist-local": ("local (Adam 0.001)", f"{MNIST} method=local"),
    "fmnist-long": ("pFedBayes, 600 rounds, ζ = 1.25", f"{FMNIST} rounds=600 zeta=1.25 eval-every=20"),
}


def run(name: str, words: str, data_dir: str, out_dir: Path) -> None:
    folder = out_dir / name
    config = read_config(folder)
    if config and config["state"] == "finished":
        return
    command = [sys.executable, "-m", "fedbayes.command", "run"]
    if config:
        command += ["--resume", str(folder)]
    else:
        command += [*shlex.split(words), f"run-name={name}", f"out-dir={out_dir}", f"data-dir={data_dir}"]
    subprocess.run(command, check=True)


def measured(folder: Path, column: str) -> list[tuple[int, float]]:
    return [
        (int(row["round"]), float(row[column])) for row in read_rows(folder / "rounds.csv") if row[column]
    ]


def table(out_dir: Path) -> str:
    """Best of the last three evaluations, and the last round."""
    lines = [
        "| | PM best | PM last | GM best | GM last | PM ECE | command: `fedbayes run …` |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (title, words) in RUNS.items():
        cells = []
        for column in ("pm_accuracy", "gm_accuracy"):
            values = [value for _, value in measured(out_dir / name, column)]
            cells += [f"{max(values[-3:]):.4f}", f"{values[-1]:.4f}"] if values else ["–", "–"]
        ece = measured(out_dir / name, "pm_ece")
        cells.append(f"{ece[-1][1]:.4f}" if ece else "–")
        data = name.split("-")[0].upper()
        lines.append(f"| {data}: {title} | {' | '.join(cells)} | `{words}` |")
    return "\n".join(lines)


def picture(out_dir: Path, file: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    for axis, data, title in (
        (axes[0], "mnist", "MNIST, medium"),
        (axes[1], "fmnist", "Fashion-MNIST, small"),
    ):
        for name, column, label, style in (
            ("pfedbayes", "pm_accuracy", "pFedBayes, personal", "C0-"),
            ("pfedbayes", "gm_accuracy", "pFedBayes, global", "C0--"),
            ("local", "pm_accuracy", "local (no federation)", "C2-"),
            ("fedavg", "gm_accuracy", "FedAvg (Adam)", "C1--"),
            ("fedavg-sgd", "gm_accuracy", "FedAvg (the paper's SGD)", "C3--"),
        ):
            points = measured(out_dir / f"{data}-{name}", column)
            axis.plot([round_ for round_, _ in points], [value for _, value in points], style, label=label)
        axis.set(title=title, xlabel="round", ylim=(0.6, 1.0) if data == "mnist" else (0.6, 0.92))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy on all clients' test data")
    axes[0].legend(loc="lower right", fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/readme"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/readme.png"))
    arguments = parser.parse_args()
    for name, (_, words) in RUNS.items():
        run(name, words, arguments.data_dir, arguments.out_dir.resolve())
    print(table(arguments.out_dir))
    picture(arguments.out_dir, arguments.picture)


if __name__ == "__main__":
    main()
