"""Cells of a table: what is missing, a number (with a point or a comma), a date, true or false."""

import re
from collections.abc import Callable
from datetime import UTC, datetime

import numpy as np

NA = frozenset(
    ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "?", ".", "-", "--")
)  # in any case of letters
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")
TRUTHS = {
    "true": 1.0,
    "yes": 1.0,
    "t": 1.0,
    "y": 1.0,
    "1": 1.0,
    "false": 0.0,
    "no": 0.0,
    "f": 0.0,
    "n": 0.0,
    "0": 0.0,
}
START = datetime(1970, 1, 1, tzinfo=UTC)


def missing(cells: np.ndarray, na: frozenset[str] = NA) -> np.ndarray:
    """Which cells say nothing."""
    return np.array([cell.casefold() in na for cell in cells.tolist()], bool)


def number(cell: str) -> float | None:
    """None for what is no finite number."""
    try:
        value = float(cell)
    except ValueError:
        if not DECIMAL_COMMA.fullmatch(cell):
            return None
        value = float(cell.replace(".", "").replace(",", "."))
    return value if np.isfinite(value) else None


def day(cell: str) -> float | None:
    """Days since 1970 of 2024-05-31, with a time or not, 2024/05/31 or 31.05.2024."""
    try:
        if ISO_DATE.fullmatch(cell):
            found = datetime.fromisoformat(cell)
        else:
            found = datetime.strptime(cell, "%d.%m.%Y" if "." in cell else "%Y/%m/%d")
    except ValueError:
        return None
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - START).total_seconds() / 86400


def truth(cell: str) -> float | None:
    """1 or 0."""
    return TRUTHS.get(cell.casefold())


def values(cells: np.ndarray, absent: np.ndarray, read: Callable[[str], float | None]) -> np.ndarray:
    """Cells as numbers: NaN where one is missing, and infinite where one is something else."""
    if read is number and not absent.any():
        try:  # thousands of them at once, where there is nothing odd about them
            found = cells.astype(np.float64)
        except ValueError:
            pass
        else:
            return np.where(np.isfinite(found), found, np.inf)
    told = [
        np.nan if gone else read(cell) for cell, gone in zip(cells.tolist(), absent.tolist(), strict=True)
    ]
    return np.array([np.inf if one is None else one for one in told], np.float64)
