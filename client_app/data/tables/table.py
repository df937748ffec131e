"""A site's table: its columns with the kinds that they have here, and its targets."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from client_app.data.errors import DataError
from client_app.data.tables.cells import NA, day, missing, number, truth, values
from client_app.data.tables.rows import Rows, read_rows, told_at_once
from fedbayes.protocol.tables import BOOLEAN, CATEGORY, DATE, NUMBER, given_categories, given_kinds

READERS = {NUMBER: number, DATE: day, BOOLEAN: truth}
EXAMPLES = {NUMBER: "a number", DATE: "a date such as 2024-05-31", BOOLEAN: "yes or no"}
ENOUGH_ROWS = 20  # below, ages differ in every row too
RARE = 5


@dataclass(frozen=True)
class Reading:
    """What a run's settings say of tables."""

    target: str = ""  # empty: the last column
    ignore: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)  # of columns whose kind is given, not found
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # likewise the categories
    na: frozenset[str] = NA
    rare: int = RARE  # a category that fewer rows have is told to nobody

    @classmethod
    def of(cls, target: str, ignore: str, kinds: str, categories: str, na: str, rare: int) -> "Reading":
        given, fixed = given_kinds(kinds), given_categories(categories)
        further = frozenset(word.strip().casefold() for word in na.split(",") if word.strip())
        return cls(
            target,
            tuple(name.strip() for name in ignore.split(",") if name.strip()),
            given | dict.fromkeys(fixed, CATEGORY),
            fixed,
            NA | further,
            rare,
        )


@dataclass(frozen=True)
class Column:
    """One column of all rows: words, or numbers with NaN where one is missing."""

    name: str
    kind: str  # empty where every cell is missing
    cells: np.ndarray
    absent: np.ndarray
    numbers: np.ndarray | None  # of every kind but a category

    def rows(self, places: np.ndarray) -> "Column":
        numbers = None if self.numbers is None else self.numbers[places]
        return replace(self, cells=self.cells[places], absent=self.absent[places], numbers=numbers)

    @property
    def is_id(self) -> bool:
        """Another whole number or word in each of many rows: a patient's number, and no measurement."""
        if len(self.cells) < ENOUGH_ROWS or self.kind not in (NUMBER, CATEGORY):
            return False
        if self.numbers is not None and not bool((self.numbers == np.round(self.numbers)).all()):
            return False
        return len(np.unique(self.cells)) == len(self.cells)


@dataclass(frozen=True)
class Table:
    """Columns beside the target, in the file's order."""

    columns: tuple[Column, ...]
    reading: Reading
    target: str

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_id)

    @property
    def x(self) -> np.ndarray:
        """Of numbers alone (n, features), as a network takes them; 0 stands for all else, which must be prepared."""
        nothing = np.zeros(len(self.columns[0].cells))
        plain = [nothing if one.numbers is None else np.nan_to_num(one.numbers) for one in self.columns]
        return np.column_stack(plain)

    def rows(self, places: np.ndarray) -> "Table":
        return replace(self, columns=tuple(column.rows(places) for column in self.columns))

    def fingerprint(self) -> bytes:
        found = hashlib.blake2b(digest_size=16)
        for column in self.columns:
            found.update("\x1f".join([column.name, *column.cells.tolist()]).encode())
        return found.digest()


def read_table(file: Path, reading: Reading) -> tuple[Table, np.ndarray]:
    """The table and its targets; DataError tells every problem of the file at once."""
    rows = read_rows(file)
    target = reading.target or next(
        (name for name in reversed(rows.header) if name not in reading.ignore), ""
    )
    wanted = columns_of(target, rows)
    if unknown := [name for name in wanted if name not in rows.header]:
        raise DataError(
            f'{file} has no column "{unknown[0]}" as its target; it has {", ".join(rows.header)}.'
        )
    names = [name for name in rows.header if name not in wanted and name not in reading.ignore]
    if not names:
        raise DataError(f"{file} has only one column; it takes others beside the target.")
    problems: list[str] = []
    columns = tuple(_column(rows, name, reading, problems) for name in names)
    y = _targets(rows, target, reading.na, problems)
    if problems:
        raise DataError(told_at_once(problems))
    return Table(columns, reading, target), y


def join(first: Table, second: Table, reading: Reading, files: tuple[Path, Path]) -> Table:
    """The rows of both, whose columns are the same in any order; a column is of one kind in both."""
    if sorted(first.features) != sorted(second.features):
        raise DataError(f"{files[1]} has other columns than {files[0].name} beside it.")
    others = {column.name: column for column in second.columns}
    cells = np.column_stack([np.concatenate([one.cells, others[one.name].cells]) for one in first.columns])
    rows = Rows(files[0], list(first.features), list(range(2, len(cells) + 2)), cells)
    problems: list[str] = []
    columns = tuple(_column(rows, name, reading, problems) for name in first.features)
    if problems:
        raise DataError(told_at_once(problems))
    return Table(columns, reading, first.target)


def _column(rows: Rows, name: str, reading: Reading, problems: list[str]) -> Column:
    cells = rows.column(name)
    absent = missing(cells, reading.na)
    kind = reading.kinds.get(name) or _found(cells, absent)
    if kind not in READERS:
        return Column(name, kind, cells, absent, None if kind == CATEGORY else np.full(len(cells), np.nan))
    numbers = values(cells, absent, READERS[kind])
    for place in np.flatnonzero(np.isinf(numbers))[:3].tolist():
        problems.append(
            f'{rows.file}, line {rows.lines[place]}: the column "{name}" has "{cells[place]}"; it takes '
            f"{EXAMPLES[kind]}, or nothing, or a word that na= names, unless kinds={name}:category."
        )
    return Column(name, kind, cells, absent, numbers)


def _found(cells: np.ndarray, absent: np.ndarray) -> str:
    """The kind that all cells have; that of most of them, so that the others are told as mistakes; else a category."""
    present = cells[~absent]
    if not len(present):
        return ""
    none = np.zeros(len(present), bool)
    shares = {kind: float(np.isfinite(values(present, none, read)).mean()) for kind, read in READERS.items()}
    whole = [kind for kind in (NUMBER, BOOLEAN, DATE) if shares[kind] == 1]
    mostly = [kind for kind in (NUMBER, DATE) if shares[kind] > 0.5]
    return next(iter((*whole, *mostly)), CATEGORY)


def _targets(rows: Rows, target: str, na: frozenset[str], problems: list[str]) -> np.ndarray:
    problems += without_target(rows, target, na)
    return targets(rows, target)


def columns_of(target: str, rows: Rows) -> list[str]:
    """One column, or with commas between several: the labels of an example."""
    return [target] if target in rows.header else [name.strip() for name in target.split(",")]


def labels(rows: Rows, names: list[str]) -> np.ndarray:
    """Rows of 0 and 1 of several columns."""
    found = [[truth(cell) for cell in rows.column(name).tolist()] for name in names]
    for name, column in zip(names, found, strict=True):
        if None in column:
            place = column.index(None)
            raise DataError(
                f'{rows.file}, line {rows.lines[place]}: the label "{name}" has "{rows.column(name)[place]}"; it takes '
                "0, 1, yes or no."
            )
    return np.array(found, np.int64).T


def targets(rows: Rows, target: str) -> np.ndarray:
    """Whole numbers, numbers or text, whichever fits all of them; of several columns rows of 0 and 1."""
    if len(names := columns_of(target, rows)) > 1:
        return labels(rows, names)
    cells = rows.column(target)
    for kind in (np.int64, np.float64):
        try:
            return cells.astype(kind)
        except (ValueError, OverflowError):
            continue
    numbers = [number(cell) for cell in cells.tolist()]
    return cells if None in numbers else np.array(numbers, np.float64)


def without_target(rows: Rows, target: str, na: frozenset[str]) -> Iterator[str]:
    for name in columns_of(target, rows):
        for place in np.flatnonzero(missing(rows.column(name), na)).tolist():
            yield f'{rows.file}, line {rows.lines[place]}: the target "{name}" has no value.'
