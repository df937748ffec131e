"""What a cell of a table says."""

import numpy as np
import pytest

from client_app.data.tables.cells import day, missing, number, truth, values


@pytest.mark.parametrize(
    ("cell", "value"),
    [("3.5", 3.5), ("3,5", 3.5), ("-1.234,5", -1234.5), ("1.234.567,25", 1234567.25), ("2e3", 2000.0), ("1,5e2", 150.0),
     ("12", 12.0), ("1,2,3", None), ("3.5 mg", None), ("inf", None), ("nan", None), ("", None)],
)  # fmt: skip
def test_numbers_with_a_point_or_a_comma(cell: str, value: float | None) -> None:
    assert number(cell) == value


@pytest.mark.parametrize(
    ("cell", "value"),
    [("1970-01-02", 1.0), ("1970-01-02T12:00", 1.5), ("1970-01-02 12:00:00+12:00", 1.0), ("1970/01/03", 2.0),
     ("03.01.1970", 2.0), ("1969-12-31", -1.0), ("2023-02-30", None), ("3.1", None), ("20240531", None)],
)  # fmt: skip
def test_dates_are_days(cell: str, value: float | None) -> None:
    assert day(cell) == value


def test_truths_and_gaps() -> None:
    assert [truth(cell) for cell in ("Yes", "no", "T", "0", "perhaps")] == [1.0, 0.0, 1.0, 0.0, None]
    cells = np.array(["", "NA", "n/a", "NaN", "?", "none", "0"])
    assert missing(cells).tolist() == [True] * 5 + [False] * 2, "none may be a category"
    found = values(np.array(["1", "", "x"]), np.array([False, True, False]), number)
    assert found[0] == 1 and np.isnan(found[1]) and np.isinf(found[2])
