"""What every figure of a page is made of, and the words that several of them share."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedbayes.protocol.columns import BY_KEY, Metric
from server_app import rows
from server_app.report.files import Run
from server_app.report.svg import percent, plain

CLUSTER_COLOURS = 8


@dataclass(frozen=True)
class Table:
    """The numbers behind a figure."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def kinds(self) -> list[str]:
        """The class of each column: "n" where every cell is a number, or nothing."""
        return [
            "n" if all(row[i].lstrip("+−")[:1].isdigit() or row[i] in ("–", "") for row in self.rows) else ""
            for i in range(len(self.header))
        ]


@dataclass(frozen=True)
class Figure:
    """A drawing with its title, legend, caption and numbers."""

    key: str  # its id in the page
    title: str
    svg: Markup
    caption: str
    legend: Sequence[tuple[str, str]] = ()  # CSS classes of the mark, and what it means
    table: Table | None = None


def headline(run: Run) -> Metric:
    """The metric that says how good a model is."""
    return BY_KEY[rows.headline((*run.rows, *run.clients))]


def shown(metric: Metric, value: float | None) -> str:
    """A metric as words print it."""
    if value is None:
        return rows.NONE
    return as_share(value) if metric.share else f"{value:.4f}"


def as_share(value: float) -> str:
    """`97.0 %`, always with one digit, so that figures in a column line up."""
    return f"{100 * value:.1f}\u202f%"


def interval(value: float | None, n: int) -> str:
    """`73.6–91.3 %`: the 95 % interval of a share of n examples."""
    if value is None or n < 1:
        return rows.NONE
    low, high = rows.wilson(value, n)
    return f"{100 * low:.1f}–{as_share(high)}"


def with_interval(metric: Metric, value: float | None, n: int) -> str:
    """`87.5 % (73.6–91.3 %)`; without an interval where the metric is no share of n examples."""
    if value is None or not metric.share or n < 1:
        return shown(metric, value)
    return f"{as_share(value)} ({interval(value, n)})"


def on_axis(metric: Metric) -> Callable[[float], str]:
    """How an axis labels a metric."""
    return percent if metric.share else plain


def bounds_of(metric: Metric) -> dict[str, float]:
    """Between which values an axis of a metric may lie."""
    return {"at_least": 0.0} | ({"at_most": 1.0} if metric.share else {})


def cluster_style(cluster: int) -> str:
    return f"c{cluster % CLUSTER_COLOURS}"


def natural(site: str) -> list[tuple[int, int | str]]:
    """The order in which a reader expects names: site-2 before site-10."""
    parts = re.split(r"(\d+)", site)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts if part]


def evenly(items: Sequence[str], count: int) -> list[str]:
    """At most `count` of the items, first and last among them, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
