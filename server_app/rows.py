"""The figures in rounds.csv: which rows were measured, the last and the best value, mean ± sd over runs."""

import math
import statistics
from collections.abc import Mapping, Sequence

from fedbayes.protocol.columns import HEADLINES, MODELS, ROUND_COLUMNS, TITLES
from fedbayes.protocol.plausible import IMPLAUSIBLE, beyond

Row = Mapping[str, str]
NONE = "–"
Z = 1.959964  # 95 % of a normal distribution lie within so many standard deviations
OF_VALIDATION = "val_accuracy"
SHARES = ("accuracy", "point_accuracy", "coverage", "conformal_coverage", OF_VALIDATION)  # of examples
Sizes = Mapping[str, Mapping[str, int]]
WINDOW = 100  # the paper reports the best evaluated round among the last 100


def number(row: Row, column: str) -> float | None:
    """A cell of rounds.csv as a number; None where it is empty or not finite."""
    cell = row.get(column) or ""
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def evaluated(rows: Sequence[Row]) -> list[Row]:
    """The rows with a measurement of either model."""
    columns = [f"{model}_{metric}" for model in MODELS for metric in TITLES]
    return [row for row in rows if any(number(row, column) is not None for column in columns)]


def headline(rows: Sequence[Row]) -> str:
    """The metric that says how good a model is: the first that some row has; accuracy where none has any."""

    def has(metric: str) -> bool:
        return any(number(row, f"{model}_{metric}") is not None for row in rows for model in MODELS)

    return next((metric.key for metric in HEADLINES if has(metric.key)), HEADLINES[0].key)


def own_columns(rows: Sequence[Row]) -> list[str]:
    """The columns that not every run has: the method's own."""
    return [name for name in dict.fromkeys(key for row in rows for key in row) if name not in ROUND_COLUMNS]


def last(rows: Sequence[Row], column: str) -> float | None:
    """The figure of the last evaluated round."""
    measured = evaluated(rows)
    return number(measured[-1], column) if measured else None


def series(rows: Sequence[Row], column: str) -> list[tuple[int, float]]:
    """Every round that has a figure in this column, with it."""
    return [(int(row["round"]), value) for row in rows if (value := number(row, column)) is not None]


def best(rows: Sequence[Row], column: str) -> tuple[float, int] | None:
    """The highest value among the evaluated rounds of the last 100, and the first round that reached it."""
    measured = evaluated(rows)
    if not measured:
        return None
    since = max(int(measured[-1]["round"]) - WINDOW, 0)  # round 0 is the untrained model
    found = [(value, at) for at, value in series(measured, column) if at > since]
    return max(found, key=lambda pair: (pair[0], -pair[1])) if found else None


def mean_and_sd(values: Sequence[float | None], digits: int = 4) -> str:
    """`0.9712 ± 0.0031`; without the sd for one seed, and a dash unless every seed has the figure."""
    present = [value for value in values if value is not None]
    if not present or len(present) < len(values):
        return NONE
    if len(present) == 1:
        return f"{present[0]:.{digits}f}"
    return f"{statistics.fmean(present):.{digits}f} ± {statistics.stdev(present):.{digits}f}"


def duration(seconds: float) -> str:
    """`42 s`, `3 min 20 s` or `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(number: int, what: str) -> str:
    """`1 round`, `3 rounds`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of n examples, after Wilson: within 0 and 1, and right for few examples too."""
    z2 = Z * Z / n
    centre = (share + z2 / 2) / (1 + z2)
    half = Z / (1 + z2) * math.sqrt(share * (1 - share) / n + z2 / (4 * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def with_interval(share: float, n: int) -> str:
    """`0.9710 (95 %: 0.9587 – 0.9797)`: a share of n examples, with its interval."""
    return "{:.4f} (95 %: {:.4f} – {:.4f})".format(share, *wilson(share, n))


def examples_of(clients: Sequence[Row], sites: Sizes | None = None) -> dict[str, int]:
    """How many examples each share is one of, in the last evaluated round, of all clients.

    `sites` are those of config.json, which says how many validation examples each has.
    """
    measured = evaluated(clients)
    final = [row for row in measured if row["round"] == measured[-1]["round"]]
    of_each = {row.get("site", ""): int(number(row, "n_test") or 0) for row in final}
    held_of_each = {site: int((sites or {}).get(site, {}).get("n_validation", 0)) for site in of_each}
    tested, held = (
        sum(sizes[site] for site in sizes.keys() - beyond(sizes, IMPLAUSIBLE))
        for sizes in (of_each, held_of_each)
    )
    return {metric: held if metric == OF_VALIDATION else tested for metric in SHARES}
