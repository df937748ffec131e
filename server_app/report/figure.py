"""What every figure of a page is made of, and the words that several of them share."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from server_app import rows
from server_app.report.files import Run

NAMES = {"pm": "personal", "gm": "global"}
CLUSTER_COLOURS = 8


@dataclass(frozen=True)
class Table:
    """The numbers behind a figure."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A drawing with its title, legend, caption and numbers."""

    key: str  # its id in the page
    title: str
    svg: str
    caption: str
    legend: Sequence[tuple[str, str]] = ()  # CSS classes of the mark, and what it means
    table: Table | None = None


def headline(run: Run) -> str:
    """The metric that says how good a model is."""
    return rows.headline((*run.rows, *run.clients))


def shown(metric: str, value: float | None) -> str:
    """A metric as words print it."""
    if value is None:
        return "–"
    shares = ("accuracy", "point_accuracy", "coverage", "nonzero")
    return f"{100 * value:.1f}\u202f%" if metric in shares else f"{value:.4f}"


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
