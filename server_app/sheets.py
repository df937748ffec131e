"""The tables of a run, rounds.csv and clients.csv: written row by row, read back as text."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbayes.protocol.files import append_text, replace_file
from server_app.events import emit


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows of rounds.csv or clients.csv, empty cells as empty strings."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return [row for row in csv.DictReader(stream) if None not in row.values()]


class Sheet:
    """One of the tables, with its columns."""

    def __init__(self, file: Path, columns: Sequence[str]) -> None:
        self.file = file
        self.columns = columns
        self._left_out: set[str] = set()  # columns that nobody declared, and that were warned of

    def begin(self, before: int) -> None:
        """Keep the rows of the rounds before this one, under the columns of this run."""
        kept = [row for row in read_rows(self.file) if int(row["round"]) < before]
        replace_file(self.file, self._text(kept, header=True).encode(), durable=False)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Further rows, on the disk before this returns."""
        append_text(self.file, self._text(rows))

    def _text(self, rows: Sequence[Mapping[str, Any]], header: bool = False) -> str:
        """Rows as CSV. A column that nobody declared is left out with a warning: it is no reason to end a run."""
        for column in sorted({key for row in rows for key in row}.difference(self.columns, self._left_out)):
            self._left_out.add(column)
            emit(
                "warning",
                message=f'{self.file.name} has no column "{column}", which the method reported: it is left out. '
                "Declare it among the method's columns.",
            )
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, self.columns, restval="", extrasaction="ignore")
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()
