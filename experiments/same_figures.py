"""Whether two versions of this project give the same figures, digit by digit.

    python experiments/same_figures.py record DIR      # with the one version installed (or on PYTHONPATH)
    python experiments/same_figures.py record DIR2     # with the other
    python experiments/same_figures.py compare DIR DIR2

With `record DIR --engine flower`, whether Flower's own simulation gives those of the embedded engine; with `--brief`
(of `record` and `compare`) in one run of each method, of three rounds.

Every method on digits for twelve rounds, sparse and clustered, one regression, one run that is resumed; all columns of
rounds.csv and clients.csv but `seconds`. Columns that only one version has count as the same where they are empty.
"""

import argparse
import csv
import subprocess
import sys
from pathlib import Path

SMALL = ["dataset=digits", "size=small", "rounds=12", "eval-every=4", "local-steps=10"]
BRIEF = ["dataset=digits", "size=small", "rounds=3", "eval-every=1", "local-steps=3", "--clients=4"]
ROTATED = ["layout=rotated", "groups=2"]
OTHERS = (
    "apfl", "bnfed", "ditto", "fedamp", "fedcfl", "fedpa", "fedper", "fedrep", "fesem", "finetune", "heurfedamp",
    "ifca", "perfedavg", "pfedgp", "pfedme", "pfedvem",
)  # fmt: skip
RUNS: dict[str, list[list[str]]] = {  # each run's command lines, one after the other
    "pfedbayes": [["method=pfedbayes"]],
    "pfedbayes-moments": [["method=pfedbayes", "aggregation=moments", "wire=bfloat16", "personal-steps=3"]],
    "pfedbayes-eager": [["method=pfedbayes", "compile=false", "mc-samples=2"]],
    "pfedbayes-sampled": [["method=pfedbayes", "clients-per-round=4", "weighting=examples", "beta=1.3"]],
    "pfedbayes-sure": [["method=pfedbayes", "aggregation-confidence=0.3", "noisy-clients=2"]],
    "pfedbayes-scaled": [["method=pfedbayes", "validation-fraction=0.2", "temperature-scaling=true"]],
    "sfedbayes": [["method=sfedbayes"]],
    "sfedbayes-half": [["method=sfedbayes", "wire=bfloat16", "sparsity-target=0.3"]],
    "cfedbayes": [["method=cfedbayes", *ROTATED]],
    "cfedbayes-sparse": [["method=cfedbayes", "family=spike-slab", *ROTATED]],
    "fedavg": [["method=fedavg"]],
    "fedprox": [["method=fedprox", "proximal=0.1"]],
    "local": [["method=local"]],
    "regression": [["method=pfedbayes", "dataset=diabetes", "model=mlp", "layout=iid"]],
    **{name: [[f"method={name}"]] for name in OTHERS},
    "resumed": [["method=cfedbayes", "rounds=5", *ROTATED], ["--resume", "resumed", "rounds=12"]],
}
EACH = {
    name: commands for name, commands in RUNS.items() if commands[0][0] == f"method={name}"
}  # of the methods


def record(folder: Path, only: list[str], engine: list[str], brief: bool) -> None:
    """Make the runs that are not there yet."""
    for name, commands in (EACH if brief else RUNS).items():
        if (folder / name / "report.html").exists() or (only and name not in only):
            continue
        for number, words in enumerate(commands):
            settings = [*(BRIEF if brief else SMALL), *words, f"run-name={name}"] if number == 0 else words
            command = [sys.executable, "-m", COMMAND, "run", *settings, f"out-dir={folder}", *engine]
            print("$", " ".join(command[2:]), flush=True)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compare(one: Path, other: Path, brief: bool) -> int:
    """The number of cells that differ."""
    total = 0
    for name in EACH if brief else RUNS:
        if not (one / name).exists() or not (other / name).exists():
            print(f"{name:20} missing in {one if not (one / name).exists() else other}")
            total += 1
            continue
        differing = [
            f"{file} row {row['round']} {row.get('site', '')} {column}: {row.get(column)} and {twin.get(column)}"
            for file in ("rounds.csv", "clients.csv")
            for row, twin in zip(_rows(one / name / file), _rows(other / name / file), strict=True)
            for column in sorted({*row, *twin} - {"seconds"})
            if (row.get(column) or "") != (twin.get(column) or "")
        ]
        print(f"{name:20} {'the same' if not differing else f'{len(differing)} cells differ'}")
        print("".join(f"    {line}\n" for line in differing[:5]), end="")
        total += len(differing)
    return total


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="runs to record")
    parser.add_argument("--engine", help="of the command; none for versions that have but one")
    parser.add_argument("--command", default="fedbayes.cli", help="the module of the command")
    parser.add_argument("--brief", action="store_true", help="each method for three rounds, and nothing else")
    given = parser.parse_args()
    COMMAND = given.command
    if given.what == "record":
        engine = ["--engine", given.engine] if given.engine else []
        record(given.folders[0].resolve(), given.only, engine, given.brief)
    else:
        sys.exit(bool(compare(*given.folders, given.brief)))
