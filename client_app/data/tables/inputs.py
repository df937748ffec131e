"""Columns become inputs, as the sites have agreed: the same for training, for new rows and in the exported model."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from client_app.data.errors import DataError
from client_app.data.tables.cells import NA, missing, values
from client_app.data.tables.rows import Rows, read_rows, told_at_once
from client_app.data.tables.table import EXAMPLES, READERS, Table, columns_of, targets, without_target
from fedbayes.protocol.agreement import Agreement
from fedbayes.protocol.tables import CATEGORY, NUMBER, Column, Preparation


def inputs_of(table: Table, preparation: Preparation) -> np.ndarray:
    """x (n, inputs) of a site's table; DataError where its columns are not those that were agreed on."""
    if sorted(table.features) != sorted(column.name for column in preparation.columns):
        agreed = ", ".join(column.name for column in preparation.columns)
        raise DataError(f"The columns here are {', '.join(table.features)}, not {agreed}.")
    found = {column.name: column for column in table.columns}

    def wrong(column: Column, _place: int, cell: str) -> str:
        return f'The column "{column.name}" has "{cell}" here; it takes {EXAMPLES[column.kind]}.'

    return _stacked(
        preparation, lambda name: (found[name].cells, missing(found[name].cells, table.reading.na)), wrong
    )


def inputs_of_rows(rows: Rows, preparation: Preparation, na: frozenset[str] = NA) -> np.ndarray:
    """x of new rows; a category that nobody knew is `other`."""

    def wrong(column: Column, place: int, cell: str) -> str:
        takes = EXAMPLES[column.kind]
        return f'{rows.file}, line {rows.lines[place]}: the column "{column.name}" has "{cell}"; it takes {takes}.'

    return _stacked(preparation, lambda name: (rows.column(name), missing(rows.column(name), na)), wrong)


def _stacked(
    preparation: Preparation,
    cells_of: Callable[[str], tuple[np.ndarray, np.ndarray]],
    wrong: Callable[[Column, int, str], str],
) -> np.ndarray:
    problems: list[str] = []
    parts = [_inputs(column, *cells_of(column.name), wrong, problems) for column in preparation.columns]
    if problems:
        raise DataError(told_at_once(problems))
    return np.column_stack(parts)


def _inputs(
    column: Column,
    cells: np.ndarray,
    absent: np.ndarray,
    wrong: Callable[[Column, int, str], str],
    problems: list[str],
) -> np.ndarray:
    if column.kind == CATEGORY:
        one_hot = cells[:, None] == np.array([*column.categories, ""])[None]
        one_hot[:, -1] = ~one_hot[:, :-1].any(1)
        found = (one_hot & ~absent[:, None]).astype(np.float64)
    else:
        read = values(cells, absent, READERS[column.kind])
        problems += [
            wrong(column, place, cells[place]) for place in np.flatnonzero(np.isinf(read))[:3].tolist()
        ]
        found = np.where(absent, column.fill, read)[:, None]
    return np.column_stack([found, absent.astype(np.float64)]) if column.missing else found


def read_new(
    file: Path, agreement: Agreement, count: int
) -> tuple[np.ndarray, np.ndarray | None, dict[str, list[str]]]:
    """New examples for a model with this agreement (where columns have no names, the first `count` of them), their
    targets where the file has them, and all further columns, ids say, as they are.

    The target is in the column that was it in training; for older models, in the only further one.
    """
    rows, preparation = read_rows(file), agreement.preparation
    names = tuple(column.name for column in preparation.columns) if preparation else agreement.features
    names = names or tuple(rows.header[:count])
    if absent := [name for name in names if name not in rows.header]:
        raise DataError(f'{file} has no column "{absent[0]}"; the model takes {", ".join(names)}.')
    others = [name for name in rows.header if name not in names]
    if not agreement.target and len(others) > 1:
        raise DataError(
            f"{file} has the columns {', '.join(others)} beside those that the model takes; only one, the target, "
            "may be there."
        )
    na = NA | frozenset(preparation.na) if preparation else frozenset()
    plain = Preparation(tuple(Column(name, NUMBER) for name in names))
    x = inputs_of_rows(rows, preparation or plain, na)
    wanted = agreement.target or next(iter(others), "")
    found = [name for name in columns_of(wanted, rows) if name in others]
    aside = {name: rows.column(name).tolist() for name in others if name not in found}
    if found != columns_of(wanted, rows) or all(missing(rows.column(name)).all() for name in found):
        return x, None, aside
    if problems := list(without_target(rows, wanted, NA)):
        raise DataError(told_at_once(problems))
    return x, targets(rows, wanted), aside
