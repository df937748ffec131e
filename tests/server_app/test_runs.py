"""The run folder's tables: a method's own columns, and those that nobody declared."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedbayes.protocol.columns import Column, client_columns, round_columns
from fedbayes.protocol.files import is_locked
from fedbayes.protocol.settings import Settings, defaults
from server_app import runs
from server_app.events import parse
from server_app.runs import RunFolder
from server_app.stored import RunError, closing_rows, read_rows

FACTS: dict[str, Any] = {
    "clients": 1,
    "partitions": 1,
    "sites": {},
    "classes": ["a", "b"],
    "model": {"name": "dnn"},
}
OWN = (Column("temperature_drop", "privacy spent"), Column("mood", "mood", "client"))
Open = Callable[..., RunFolder]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.setattr(runs, "LOCK_WAIT", 0.0)

    def run(columns: Sequence[Column] = (), first_round: int = 1, **settings: Any) -> RunFolder:
        config = defaults() | {"out-dir": str(tmp_path), "run-name": "a"} | settings
        folder = RunFolder.open(Settings.parse(config), FACTS, columns)
        folder.begin(first_round)
        return folder

    return run


def header(folder: RunFolder, name: str) -> tuple[str, ...]:
    return tuple((folder.path / name).read_text().splitlines()[0].split(","))


def row(number: int) -> dict[str, Any]:
    return {"round": number, "pm_accuracy": 0.5, "seconds": 1.5, "temperature_drop": 0.25 * number}


def test_a_methods_own_columns_are_written_after_the_others(opened: Open) -> None:
    folder = opened(OWN)
    folder.append(row(0), [{"round": 0, "site": "x", "mood": "good"}], None)
    folder.close()
    assert header(folder, "rounds.csv") == (*round_columns(), "temperature_drop")
    assert header(folder, "clients.csv") == (*client_columns(), "mood")
    assert read_rows(folder.path / "rounds.csv")[0]["temperature_drop"] == "0.0"
    assert read_rows(folder.path / "clients.csv")[0]["mood"] == "good"
    assert closing_rows(folder.path / "rounds.csv") == [
        {"round": "0", "pm_accuracy": "0.5", "temperature_drop": "0.0"}
    ]
    assert json.loads((folder.path / "config.json").read_text())["columns"] == [
        {"name": "temperature_drop", "title": "privacy spent", "of": "round"},
        {"name": "mood", "title": "mood", "of": "client"},
    ]


def test_without_own_columns_nothing_is_said_of_them(opened: Open) -> None:
    folder = opened()
    folder.close()
    assert header(folder, "rounds.csv") == round_columns()
    assert "columns" not in json.loads((folder.path / "config.json").read_text())


def test_a_resumed_run_has_the_same_columns(opened: Open) -> None:
    folder = opened(OWN)
    for number in range(3):
        folder.append(row(number), [], None)
    folder.close()
    for columns in (OWN, ()):  # a later version of the method may have fewer
        again = opened(columns, 3, resume=True)
        again.append(row(2), [], None)
        again.close()
        assert [one["temperature_drop"] for one in read_rows(again.path / "rounds.csv")] == [
            "0.0",
            "0.25",
            "0.5",
        ]
        assert header(again, "clients.csv") == (*client_columns(), "mood")


def test_a_column_that_nobody_declared_is_left_out_and_named_once(
    opened: Open, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = opened()
    for number in (0, 1):
        folder.append(row(number), [{"round": number, "site": "x", "mood": "good"}], None)
    folder.close()
    assert [one["seconds"] for one in read_rows(folder.path / "rounds.csv")] == ["1.5", "1.5"]
    assert header(folder, "rounds.csv") == round_columns()
    warnings = [event["message"] for line in capsys.readouterr().out.splitlines() if (event := parse(line))]
    assert warnings == [
        'clients.csv has no column "mood", which the method reported: it is left out. Declare it among the '
        "method's columns.",
        'rounds.csv has no column "temperature_drop", which the method reported: it is left out. Declare it among the '
        "method's columns.",
    ]


def test_a_run_that_may_not_be_resumed_so_leaves_the_folder_free(opened: Open) -> None:
    opened().close()
    with pytest.raises(RunError, match=r"The run was started with zeta=10\.0, not 1\.0"):
        opened(resume=True, zeta=1.0)
    again = opened(resume=True)
    assert is_locked(again.path / ".writer.lock")
    again.close()
    assert not is_locked(again.path / ".writer.lock")
