"""The tables and the picture of README and docs: runs what is missing, then reads the run folders.

python experiments/tables.py personal|clusters|sparse --data-dir DIR [--out-dir runs/tables]
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from server_app.stored import read_config, read_rows

MNIST = "dataset=mnist size=medium rounds=100"
FMNIST = "dataset=fmnist size=small rounds=150"
ROTATED = "dataset=mnist size=small layout=rotated rounds=100"
SPARSE = "dataset=mnist size=medium rounds=100 personal-steps=5"
SGD = "optimizer=sgd lr-global=0.01"
ADAM = "adam-beta2=0.999"  # plain methods with PyTorch's own Adam
TABLES = {  # table: {name of the run: (title, what is added to `fedbayes run`)}
    "personal": {
        "fmnist-pfedbayes": ("FMNIST: pFedBayes", FMNIST),
        "fmnist-fedavg-sgd": ("FMNIST: FedAvg (SGD 0.01, the paper's)", f"{FMNIST} method=fedavg {SGD}"),
        "fmnist-fedavg": ("FMNIST: FedAvg (Adam 0.001)", f"{FMNIST} method=fedavg {ADAM}"),
        "fmnist-local": ("FMNIST: local (Adam 0.001)", f"{FMNIST} method=local {ADAM}"),
        "mnist-pfedbayes": ("MNIST: pFedBayes", f"{MNIST} personal-steps=5"),
        "mnist-fedavg-sgd": ("MNIST: FedAvg (SGD 0.01, the paper's)", f"{MNIST} method=fedavg {SGD}"),
        "mnist-fedavg": ("MNIST: FedAvg (Adam 0.001)", f"{MNIST} method=fedavg {ADAM}"),
        "mnist-local": ("MNIST: local (Adam 0.001)", f"{MNIST} method=local {ADAM}"),
        "fmnist-long": (
            "FMNIST: pFedBayes, 600 rounds, the recipe for long runs",
            "dataset=fmnist size=small rounds=600 zeta=2 lr-personal=0.0002 lr-global=0.0002 eval-every=20",
        ),
    },
    "clusters": {
        "rotated-cfedbayes": ("cFedBayes, K = 2", f"{ROTATED} method=cfedbayes clusters=2"),
        "rotated-cfedbayes-chosen": ("cFedBayes, K chosen", f"{ROTATED} method=cfedbayes"),
        "rotated-cfedbayes-sparse": (
            "cFedBayes, spike-and-slab, K chosen",
            f"{ROTATED} method=cfedbayes family=spike-slab",
        ),
        "rotated-pfedbayes": ("pFedBayes", ROTATED),
    },
    "sparse": {
        "sparse-pfedbayes": ("pFedBayes", SPARSE),
        **{
            f"sparse-{share}": (
                f"sFedBayes, λ_init = {share}",
                f"{SPARSE} method=sfedbayes lambda-init={share}",
            )
            for share in (0.3, 0.5, 0.7)
        },
        "sparse-target-0.2": (
            "sFedBayes, target 0.2",
            f"{SPARSE} method=sfedbayes sparsity-target=0.2",
        ),
    },
}


def run(name: str, words: str, data_dir: str, out_dir: Path, *options: str) -> None:
    folder = out_dir / name
    config = read_config(folder)
    if config and config["state"] == "finished":
        return
    command = [sys.executable, "-m", "fedbayes.cli", "run"]
    if config:
        command += ["--resume", str(folder)]
    else:
        command += [*shlex.split(words), f"run-name={name}", f"out-dir={out_dir}", f"data-dir={data_dir}"]
        command += options
    subprocess.run(command, check=True)


def measured(folder: Path, column: str) -> list[tuple[int, float]]:
    return [
        (int(row["round"]), float(row[column])) for row in read_rows(folder / "rounds.csv") if row[column]
    ]


def table(runs: dict[str, tuple[str, str]], out_dir: Path) -> str:
    """Accuracy as the best of the last three evaluations and in the last round; ECE, non-zero ratio, ARI last."""
    lines = [
        "| | PM best | PM last | GM best | GM last | PM ECE | PM non-zero | ARI | `fedbayes run …` |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, (title, words) in runs.items():
        cells = []
        for column in ("pm_accuracy", "gm_accuracy"):
            values = [value for _, value in measured(out_dir / name, column)]
            cells += [f"{max(values[-3:]):.4f}", f"{values[-1]:.4f}"] if values else ["–", "–"]
        for column in ("pm_ece", "pm_nonzero", "adjusted_rand"):
            values = [value for _, value in measured(out_dir / name, column)]
            cells.append(f"{values[-1]:.4f}" if values else "–")
        lines.append(f"| {title} | {' | '.join(cells)} | `{words}` |")
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
    parser.add_argument("table", choices=sorted(TABLES))
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/tables"))
    parser.add_argument("--picture", type=Path, default=Path("docs/images/readme.png"))
    arguments = parser.parse_args()
    out_dir, runs = arguments.out_dir.resolve(), TABLES[arguments.table]
    for name, (_, words) in runs.items():
        run(name, words, arguments.data_dir, out_dir)
    print(table(runs, out_dir))
    if arguments.table == "personal":
        picture(out_dir, arguments.picture)


if __name__ == "__main__":
    main()
