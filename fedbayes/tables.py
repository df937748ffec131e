"""The closing tables: one run's last figures, and the mean over seeds."""

import statistics
from collections.abc import Mapping, Sequence

from rich.box import ROUNDED
from rich.table import Table

Row = Mapping[str, str]
NONE = "–"
WINDOW = 100  # the paper reports the best evaluated round among the last 100
MODELS = ("pm", "gm")
METRICS = {
    "accuracy": "accuracy",
    "point_accuracy": "accuracy of the mean network",
    "rmse": "RMSE",
    "coverage": "coverage",
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "calibration error (ECE)",
    "scaled_nll": "NLL after temperature scaling",
    "scaled_ece": "ECE after temperature scaling",
    "nonzero": "non-zero weights",
}


def number(row: Row, column: str) -> float | None:
    """A cell of rounds.csv as a number; None where it is empty."""
    cell = row.get(column) or ""
    try:
        return float(cell)
    except ValueError:
        return None


def evaluated(rows: Sequence[Row]) -> list[Row]:
    """The rows with a measurement of either model."""
    columns = [f"{model}_{metric}" for model in MODELS for metric in METRICS]
    return [row for row in rows if any(number(row, column) is not None for column in columns)]


def last(rows: Sequence[Row], column: str) -> float | None:
    """The figure of the last evaluated round."""
    measured = evaluated(rows)
    return number(measured[-1], column) if measured else None


def best(rows: Sequence[Row], column: str) -> tuple[float, int] | None:
    """The highest value among the evaluated rounds of the last 100, and the first round that reached it."""
    measured = evaluated(rows)
    if not measured:
        return None
    since = max(int(measured[-1]["round"]) - WINDOW, 0)  # round 0 is the untrained model
    found = [(value, int(row["round"])) for row in measured if (value := number(row, column)) is not None]
    found = [(value, at) for value, at in found if at > since]
    return max(found, key=lambda pair: (pair[0], -pair[1])) if found else None


def run_table(name: str, rows: Sequence[Row]) -> Table:
    """Personal beside global, as measured in the last evaluated round."""
    measured = evaluated(rows)
    at = f", round {measured[-1]['round']}" if measured else ""
    table = new_table(f"{name}{at}")
    for metric, title in METRICS.items():
        cells = [_figure(last(rows, f"{model}_{metric}")) for model in MODELS]
        if cells != [NONE, NONE]:
            table.add_row(title, *cells)
    peaks = [best(rows, f"{model}_accuracy") for model in MODELS]
    if any(peaks):
        cells = [f"{peak[0]:.4f} (round {peak[1]})" if peak else NONE for peak in peaks]
        table.add_row(f"best accuracy, last {WINDOW} rounds", *cells)
    return table


def seeds_table(name: str, runs: Mapping[int, Sequence[Row]]) -> Table:
    """Mean ± sample standard deviation over the seeds, `runs` being each seed's rows."""
    table = new_table(f"{name}: {len(runs)} seed{'s' if len(runs) != 1 else ''}, mean ± sd")

    def add(title: str, values: list[list[float | None]]) -> None:
        cells = [mean_and_sd(column) for column in values]
        if cells != [NONE, NONE]:
            table.add_row(title, *cells)

    for metric in ("accuracy", "nll", "ece"):
        title = f"{METRICS[metric]}, last round"
        add(title, [[last(rows, f"{model}_{metric}") for rows in runs.values()] for model in MODELS])
        if metric == "accuracy":
            peaks = [[best(rows, f"{model}_accuracy") for rows in runs.values()] for model in MODELS]
            title = f"best accuracy, last {WINDOW} rounds"
            add(title, [[peak[0] if peak else None for peak in column] for column in peaks])
    return table


def mean_and_sd(values: Sequence[float | None]) -> str:
    """`0.9712 ± 0.0031`; without the sd for one seed, and a dash unless every seed has the figure."""
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return NONE
    if len(present) == 1:
        return f"{present[0]:.4f}"
    return f"{statistics.fmean(present):.4f} ± {statistics.stdev(present):.4f}"


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def new_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=ROUNDED)
    table.add_column("")
    table.add_column("personal", justify="right", style="cyan")
    table.add_column("global", justify="right", style="green")
    return table
