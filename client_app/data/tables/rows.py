"""The rows of a CSV file with a header line, as text; every complaint names the file and the line."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from client_app.data.errors import DataError
from client_app.data.tables.cells import number

DELIMITERS = ",;\t"


@dataclass(frozen=True)
class Rows:
    """Cells without blanks around them."""

    file: Path
    header: list[str]
    lines: list[int]  # the number of each row's line in the file
    cells: np.ndarray  # (n, columns) of text

    def column(self, name: str) -> np.ndarray:
        found: np.ndarray = self.cells[:, self.header.index(name)]
        return found


def read_rows(file: Path) -> Rows:
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
    if any(number(cell) is not None or not cell for cell in header):
        raise DataError(f"{file} has no header line; the first line takes the names of the columns.")
    if repeated := next((name for name in header if header.count(name) > 1), None):
        raise DataError(f'{file} has two columns "{repeated}".')
    wrong = [f"{file}, line {line}: {len(row)} cells instead of {len(header)}." for line, row in rows[1:]
             if len(row) != len(header)]  # fmt: skip
    if wrong:
        raise DataError(told_at_once(wrong))
    cells = np.array([[cell.strip() for cell in row] for _, row in rows[1:]])
    return Rows(file, header, [line for line, _ in rows[1:]], cells)


def told_at_once(problems: list[str], most: int = 10) -> str:
    """All problems of a file, a line each."""
    more = [f"… and {len(problems) - most} more."] if len(problems) > most else []
    return "\n".join([*problems[:most], *more])
