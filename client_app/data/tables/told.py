"""What a site tells of its table: the one place where its statistics leave it.

Counts, and for numbers mean and variance, of training rows; for categories the words that at least `rare` rows share.
Whatever is to stand in for them, sums with noise or masked ones, is made here and nowhere else.
"""

import numpy as np

from client_app.data.tables.cells import NA
from client_app.data.tables.table import Column, Table
from fedbayes.protocol.tables import BOOLEAN, CATEGORY, LONGEST_NAME, NUMBER, ColumnClaim, TableClaim


def told(table: Table, scaled: bool) -> TableClaim:
    """`scaled`: all sites scale together. Where they do not, only what fills missing values is told."""
    columns = tuple(_column(table, column, scaled) for column in table.columns)
    return TableClaim(columns, tuple(sorted(table.reading.na - NA)), scaled)


def _column(table: Table, column: Column, scaled: bool) -> ColumnClaim:
    n, absent = int((~column.absent).sum()), int(column.absent.sum())
    fixed = table.reading.categories.get(column.name, ())
    words = () if fixed or column.kind not in (CATEGORY, BOOLEAN) else _words(column, table.reading.rare)
    if column.kind == CATEGORY or column.numbers is None or not n:
        return ColumnClaim(column.name, column.kind if n else "", n, absent, words=words, fixed=fixed)
    present = column.numbers[~column.absent]
    binary = column.kind == NUMBER and bool(np.isin(present, (0.0, 1.0)).all())
    needed = scaled or absent > 0 or column.kind == BOOLEAN
    mean, variance = (float(present.mean()), float(present.var())) if needed else (0.0, 0.0)
    return ColumnClaim(column.name, column.kind, n, absent, mean, variance, binary, words)


def _words(column: Column, rare: int) -> tuple[tuple[str, int], ...]:
    found, counts = np.unique(column.cells[~column.absent], return_counts=True)
    return tuple(
        (word, count)
        for word, count in zip(found.tolist(), counts.tolist(), strict=True)
        if count >= rare and len(word) <= LONGEST_NAME
    )
