"""Three of ten clients have random labels: what uncertainty-aware aggregation does (docs/uncertainty.md).

    python experiments/confidence.py --data-dir DIR [--out-dir runs/confidence]

Runs what has not been run yet, then reads the run folders. Clients 0, 1 and 2 are the noisy ones; test labels are true
everywhere.
"""

import argparse
from pathlib import Path
from statistics import fmean

from tables import run

from server_app.stored import read_rows

NOISY = ("0", "1", "2")
MNIST = "dataset=mnist size=small rounds=25 eval-every=25 personal-steps=5"
RUNS = {
    "clean": ("no noisy clients", MNIST),
    "clean-out": ("no noisy clients, 0.3 left out", f"{MNIST} aggregation-confidence=0.3"),
    "noisy": ("3 noisy clients", f"{MNIST} noisy-clients=3"),
    "noisy-weight": ("3 noisy clients, weighted", f"{MNIST} noisy-clients=3 aggregation-confidence=weight"),
    "noisy-out": ("3 noisy clients, 0.3 left out", f"{MNIST} noisy-clients=3 aggregation-confidence=0.3"),
}


def table(out_dir: Path) -> str:
    """Accuracies in the last round over the honest clients' test data; what clients said of their uncertainty."""
    lines = [
        "| | GM, all | GM, honest | PM, honest | PM, noisy | noisy ones left out | entropy, honest | entropy, noisy |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (title, _) in RUNS.items():
        rows = read_rows(out_dir / name / "clients.csv")
        last = [row for row in rows if row["round"] == rows[-1]["round"]]
        honest, noisy = ([row for row in last if (row["site"] in NOISY) == kind] for kind in (False, True))
        cells = [
            mean(last, "gm_accuracy"), mean(honest, "gm_accuracy"), mean(honest, "pm_accuracy"),
            mean(noisy, "pm_accuracy"), right(rows) if name == "noisy-out" else "–", mean(honest, "uncertainty"),
            mean(noisy, "uncertainty"),
        ]  # fmt: skip
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def mean(rows: list[dict[str, str]], column: str) -> str:
    """Every client has as many test examples as the others, so the mean of accuracies is the pooled accuracy."""
    values = [float(row[column]) for row in rows if row[column]]
    return f"{fmean(values):.4f}" if values else "–"


def right(rows: list[dict[str, str]]) -> str:
    """In how many rounds the three least certain clients were the noisy ones."""
    said: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["uncertainty"]:
            said.setdefault(row["round"], {})[row["site"]] = float(row["uncertainty"])
    found = [set(sorted(one, key=one.__getitem__)[-3:]) == set(NOISY) for one in said.values()]
    return f"{sum(found)} of {len(found)} rounds"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--out-dir", type=Path, default=Path("runs/confidence"))
    arguments = parser.parse_args()
    out_dir = arguments.out_dir.resolve()
    for name, (_, words) in RUNS.items():
        run(name, words, arguments.data_dir, out_dir)
    print(table(out_dir))


if __name__ == "__main__":
    main()
