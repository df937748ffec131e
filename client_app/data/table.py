"""A CSV table with a header line: one column is the target, all others are numbers."""

import csv
from pathlib import Path

import numpy as np

from client_app.data.errors import DataError

DELIMITERS = ",;\t"


def read_table(file: Path, target: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """x (n, features), y (n,) and the names of the features; `target` names the column of y, empty = the last."""
    header, rows = _read_rows(file)
    wanted = target or header[-1]
    if wanted not in header:
        raise DataError(f'{file} has no column "{wanted}" as its target; it has {", ".join(header)}.')
    place = header.index(wanted)
    features = tuple(name for name in header if name != wanted)
    if not features:
        raise DataError(f"{file} has only one column; it takes numbers beside the target.")
    x = _numbers(file, rows, header, features)
    return x, _targets([_target(file, line, row[place], wanted) for line, row in rows]), features


def read_new(file: Path, features: tuple[str, ...], count: int) -> tuple[np.ndarray, np.ndarray | None]:
    """New examples for a model that takes these columns (or, where they have no names, the first `count`).

    One further column may be there, the target; without it there is no y.
    """
    header, rows = _read_rows(file)
    features = features or tuple(header[:count])
    if missing := [name for name in features if name not in header]:
        raise DataError(f'{file} has no column "{missing[0]}"; the model takes {", ".join(features)}.')
    others = [name for name in header if name not in features]
    if len(others) > 1:
        raise DataError(
            f"{file} has the columns {', '.join(others)} beside those that the model takes; only one, the target, "
            "may be there."
        )
    x = _numbers(file, rows, header, features)
    if not others:
        return x, None
    place = header.index(others[0])
    return x, _targets([_target(file, line, row[place], others[0]) for line, row in rows])


def _numbers(
    file: Path, rows: list[tuple[int, list[str]]], header: list[str], features: tuple[str, ...]
) -> np.ndarray:
    """The cells of these columns, in this order."""
    places = [header.index(name) for name in features]
    x = np.empty((len(rows), len(features)), np.float64)
    for number, (line, row) in enumerate(rows):
        cells = [row[place] for place in places]
        try:
            x[number] = cells
        except ValueError:
            column, cell = next(pair for pair in zip(features, cells, strict=True) if not _is_number(pair[1]))
            what = f'has "{cell}"' if cell.strip() else "has no value"
            raise DataError(
                f'{file}, line {line}: the column "{column}" {what}; it takes a number.'
            ) from None
        if not np.isfinite(x[number]).all():
            column = features[int(np.flatnonzero(~np.isfinite(x[number]))[0])]
            raise DataError(f'{file}, line {line}: the column "{column}" is not finite (NaN or infinite).')
    return x


def _target(file: Path, line: int, cell: str, column: str) -> str:
    if not cell.strip():
        raise DataError(f'{file}, line {line}: the target "{column}" has no value.')
    return cell.strip()


def _read_rows(file: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The header, and each row with the number of its line."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            first = stream.readline()
            stream.seek(0)
            reader = csv.reader(stream, delimiter=max(DELIMITERS, key=first.count), strict=True)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as a CSV table in UTF-8 ({error}).") from None
    if len(rows) < 2:
        raise DataError(f"{file} has no examples; it takes a header line and a line for each example.")
    header = [cell.strip() for cell in rows[0][1]]
    if any(_is_number(cell) or not cell for cell in header):
        raise DataError(f"{file} has no header line; the first line takes the names of the columns.")
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise DataError(f'{file} has two columns "{repeated}".')
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise DataError(f"{file}, line {line}: {len(row)} cells instead of {len(header)}.")
    return header, rows[1:]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _targets(cells: list[str]) -> np.ndarray:
    """Whole numbers, numbers or text, whichever fits all of them."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells)
