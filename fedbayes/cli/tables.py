"""The closing tables: one run's last figures, and the mean over seeds."""

from collections.abc import Mapping, Sequence

from rich.box import ROUNDED
from rich.table import Table

from fedbayes.protocol.columns import MODELS, TITLES
from server_app.rows import (
    NONE,
    WINDOW,
    Row,
    best,
    evaluated,
    last,
    mean_and_sd,
    own_columns,
    series,
    wilson,
)

BEST = f"best accuracy on test data, last {WINDOW} rounds"  # the rounds are chosen by the same data


def run_table(name: str, rows: Sequence[Row], examples: Mapping[str, int] | None = None) -> Table:
    """Personal beside global, as measured in the last evaluated round; below them the method's own columns.

    `examples`, of all clients' data, give accuracies their 95 % intervals.
    """
    measured = evaluated(rows)
    at = f", round {measured[-1]['round']}" if measured else ""
    table = new_table(f"{name}{at}")
    for metric, title in TITLES.items():
        cells = [_figure(last(rows, f"{model}_{metric}")) for model in MODELS]
        if cells != [NONE, NONE]:
            table.add_row(title, *cells)
            if n := (examples or {}).get(metric):
                spread = [_interval(last(rows, f"{model}_{metric}"), n) for model in MODELS]
                table.add_row("95 % interval of it", *spread)
    peaks = [best(rows, f"{model}_accuracy") for model in MODELS]
    if any(peaks):
        cells = [f"{peak[0]:.4f} (round {peak[1]})" if peak else NONE for peak in peaks]
        table.add_row(BEST, *cells)
    own = {name: points[-1] for name in own_columns(rows) if (points := series(rows, name))}
    if own:
        table.caption = ", ".join(f"{name} {value:g} (round {at})" for name, (at, value) in own.items())
    return table


def seeds_table(name: str, runs: Mapping[int, Sequence[Row]]) -> Table:
    """Mean ± sample standard deviation over the seeds, `runs` being each seed's rows."""
    table = new_table(f"{name}: {len(runs)} seed{'s' if len(runs) != 1 else ''}, mean ± sd")

    def add(title: str, values: list[list[float | None]]) -> None:
        cells = [mean_and_sd(column) for column in values]
        if cells != [NONE, NONE]:
            table.add_row(title, *cells)

    for metric in ("accuracy", "rmse", "nll", "coverage", "ece"):
        title = f"{TITLES[metric]}, last round"
        add(title, [[last(rows, f"{model}_{metric}") for rows in runs.values()] for model in MODELS])
        if metric == "accuracy":
            peaks = [[best(rows, f"{model}_accuracy") for rows in runs.values()] for model in MODELS]
            title = BEST
            add(title, [[peak[0] if peak else None for peak in column] for column in peaks])
    return table


def _interval(value: float | None, examples: int) -> str:
    if value is None:
        return NONE
    return "{:.4f} – {:.4f}".format(*wilson(value, examples))


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"


def new_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=ROUNDED)
    table.add_column("")
    for name, colour in zip(MODELS.values(), ("cyan", "green"), strict=True):
        table.add_column(name, justify="right", style=colour)
    return table
