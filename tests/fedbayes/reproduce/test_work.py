"""The ledger with runs that are made up: what is run, written down, gone on with and shown."""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedbayes.cli import command
from fedbayes.cli import reproduce as command_of_reproduce
from fedbayes.errors import CommandError
from fedbayes.launch.plan import Plan
from fedbayes.reproduce import cells, work
from fedbayes.reproduce.ledger import Entry, Ledger
from fedbayes.reproduce.recipes import RECIPES, Recipe
from fedbayes.reproduce.work import Job, seconds_left

WORDS = ["reproduce", "table1", "--only", "mnist/small/pfedme,mnist/small/fedavg", "--rounds", "4"]
KILLED = -1


class Runs:
    """Plays the runs: `trouble` says with which status a method's ends, the others come to `accuracy`."""

    def __init__(self, trouble: dict[str, int] | None = None, accuracy: float = 0.9) -> None:
        self.trouble, self.accuracy = trouble or {}, accuracy
        self.started: list[str] = []
        self.resumed: list[str] = []
        self.waiting: list[tuple[str, dict[str, Any]]] = []

    def start(self, name: str, plan: Plan) -> None:
        settings = plan.settings
        self.started.append(f"{settings.method} {settings.seed}")
        if settings.resume:
            self.resumed.append(settings.method)
        status = self.trouble.get(settings.method, 0)
        plan.folder.mkdir(parents=True, exist_ok=True)
        config = {
            "format": 1, "uuid": "u", "settings": settings.as_config() | {"resume": False},
            "clients": plan.clients, "state": {0: "finished", 130: "stopped"}.get(status, "failed"),
        }  # fmt: skip
        (plan.folder / "config.json").write_text(json.dumps(config))
        done = settings.rounds if status == 0 else 1
        tags = {"format": "1", "round": str(done), "memory": "{}"}
        save_file({"w": np.zeros(1)}, plan.folder / "checkpoint.safetensors", tags)
        with (plan.folder / "rounds.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["round", "pm_accuracy", "gm_accuracy", "seconds"])
            for at in range(1, done + 1):
                last = at == settings.rounds
                writer.writerow([at, self.accuracy if last else 0.95, 0.8 if last else 0.1, 2.0])
        error = "It diverged." if status == 1 else ""
        self.waiting += [
            (name, {"event": "round", "round": 1, "rounds": settings.rounds}),
            (name, {"event": "ended", "status": status, "error": error}),
        ]

    def hear(self) -> Iterator[tuple[str, dict[str, Any]]]:
        assert self.waiting, "nobody would ever speak"
        while self.waiting:
            yield self.waiting.pop(0)

    def stop(self) -> None:
        self.waiting = [
            (name, event | {"status": 130} if event["event"] == "ended" else event)
            for name, event in self.waiting
        ]


@pytest.fixture
def run(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """run(runs, *words): the command with these runs; its status and what it printed."""

    def no_svhn(settings: Any, _clients: int) -> None:
        if settings.dataset == "svhn":
            raise CommandError("train_32x32.mat is missing.")

    monkeypatch.setattr(work, "check_data", no_svhn)

    def reproduced(runs: Runs, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(command_of_reproduce, "_runner", lambda: runs)
        with pytest.raises(SystemExit) as ended:
            command.main(list(words))
        said = capsys.readouterr()
        return int(str(ended.value.code)), said.out + said.err

    return reproduced


def book(here: Path) -> list[Entry]:
    return Ledger(here / "runs" / "reproduce" / "ledger.json").entries


def rows(here: Path) -> dict[str, dict[str, str]]:
    with (here / "runs" / "reproduce" / "table1.csv").open() as stream:
        return {row["cell"]: row for row in csv.DictReader(stream)}


def test_what_is_finished_is_not_run_again(run: Callable[..., Any], here: Path) -> None:
    runs = Runs()
    status, said = run(runs, *WORDS, "--seeds", "1,2")
    assert status == 0 and runs.started == ["fedavg 1", "pfedme 1", "fedavg 2", "pfedme 2"]
    assert "4/4  mnist/small/pfedme, seed 2: PM 90.00, GM 80.00 in 8 s" in said
    assert "about 24 s left" in said  # after the first of four
    again = Runs()
    status, said = run(again, *WORDS, "--seeds", "1,2")
    assert status == 0 and again.started == [] and "4 runs, 4 of them finished before" in said
    row = rows(here)["mnist/small/pfedme"]
    assert (row["pm"], row["pm_sd"], row["pm_paper"], row["pm_difference"]) == (
        "90.0",
        "0.0",
        "92.88",
        "-2.88",
    )
    assert (row["seeds"], row["rounds"]) == ("1,2", "4")
    assert (
        row["pm_best_of_last_100_chosen_on_test_data"] == "95.0"
    )  # the last round counts, this stands beside it


def test_a_failed_one_is_named_and_the_rest_goes_on(run: Callable[..., Any], here: Path) -> None:
    status, said = run(Runs({"fedavg": 1}), *WORDS)
    assert status == 1 and "Failed:      mnist/small/fedavg, seed 1: It diverged." in said
    assert [(one.name, one.state, one.why) for one in book(here)] == [
        ("mnist/small/fedavg", "failed", "It diverged."), ("mnist/small/pfedme", "finished", ""),
    ]  # fmt: skip
    assert rows(here)["mnist/small/fedavg"]["why"] == "It diverged."
    again = Runs()
    status, _ = run(again, *WORDS)
    assert status == 0 and again.started == ["fedavg 1"] and again.resumed == ["fedavg"]
    assert {one.state for one in book(here)} == {"finished"}


def test_a_stopped_one_goes_on_and_nothing_after_it_is_begun(run: Callable[..., Any], here: Path) -> None:
    runs = Runs({"fedavg": 130})
    status, said = run(runs, *WORDS)
    assert status == 130 and runs.started == ["fedavg 1"]
    assert [one.state for one in book(here)] == ["stopped"]
    only = "--only mnist/small/pfedme,mnist/small/fedavg --rounds 4"
    assert f"Go on with:  fedbayes reproduce table1 {only}\n" in said
    again = Runs()
    assert run(again, *WORDS)[0] == 0
    assert again.started == ["fedavg 1", "pfedme 1"] and again.resumed == ["fedavg"]


def test_a_stop_ends_all_that_run_at_once(run: Callable[..., Any], here: Path) -> None:
    runs = Runs({"fedavg": 130})
    assert run(runs, *WORDS, "--jobs", "2")[0] == 130
    assert runs.started == ["fedavg 1", "pfedme 1"]
    assert [one.state for one in book(here)] == ["stopped", "stopped"]


def test_a_run_that_was_killed_is_one_that_failed(run: Callable[..., Any], here: Path) -> None:
    assert run(Runs({"pfedme": KILLED}), *WORDS)[0] == 1
    assert [one.state for one in book(here)] == ["finished", "failed"]


def test_cells_without_data_say_so_and_are_no_failure(run: Callable[..., Any], here: Path) -> None:
    runs = Runs()
    words = ["reproduce", "table1", "--only", "svhn/small/fedavg,mnist/small/fedavg", "--rounds", "4"]
    status, said = run(runs, *words)
    assert status == 0 and runs.started == ["fedavg 1"] and "not run: no data" in said
    assert rows(here)["svhn/small/fedavg"]["why"] == "train_32x32.mat is missing."
    page = (here / "runs" / "reproduce" / "table1.html").read_text()
    assert "not run: no data" in page and "<script" not in page


def test_other_rounds_and_other_settings_are_other_entries(
    run: Callable[..., Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["reproduce", "table1", "--only", "mnist/small/pfedme"]
    run(Runs(accuracy=0.5), *words, "--rounds", "4")
    longer = Runs(accuracy=0.6)
    run(longer, *words, "--rounds", "6")
    assert longer.started == ["pfedme 1"] and longer.resumed == []
    assert rows(here)["mnist/small/pfedme"]["pm"] == "60.0"
    assert run(Runs(), *words, "--rounds", "4", "--show")[0] == 0
    assert rows(here)["mnist/small/pfedme"]["pm"] == "50.0"
    run(Runs(), *words, "--show")  # of as many rounds as there are
    assert rows(here)["mnist/small/pfedme"]["rounds"] == "6"
    monkeypatch.setitem(RECIPES, "pfedme", Recipe(dnn="pfedme.penalty=7"))
    run(Runs(), *words, "--rounds", "4", "--show")
    assert rows(here)["mnist/small/pfedme"]["state"] == "not run yet"
    other = Runs(accuracy=0.7)
    run(other, *words, "--rounds", "4")
    assert other.started == ["pfedme 1"]
    assert sorted((one.rounds, one.figures["pm_accuracy"]) for one in book(here)) == [
        (4, 0.5),
        (4, 0.7),
        (6, 0.6),
    ]


def test_tables_come_from_the_ledger_alone(run: Callable[..., Any], here: Path) -> None:
    run(Runs(), *WORDS, "--ledger", "kept/ledger.json")
    moved = here / "moved.json"
    (here / "kept" / "ledger.json").rename(moved)
    status, said = run(
        Runs(), "reproduce", "table1", "--show", "--ledger", str(moved), "--out-dir", "elsewhere"
    )
    assert status == 0 and "90.00" in said
    assert (
        "| small | pfedme | 4 | 1 | 90.00 | 92.88 ± 0.04 | −2.88 | 80.00 |"
        in (here / "elsewhere" / "table1.md").read_text()
    )


def test_a_setting_that_did_not_exist_then_has_its_default() -> None:
    (cell,) = cells.chosen("table1", "mnist/small/fedavg")
    job = Job.of(cell, 1, 4)
    older = {key: value for key, value in job.settings.items() if key != "wire"}
    entry = Entry(cell.name, 1, 4, older)
    assert entry.is_of(job.settings) and not entry.is_of({**job.settings, "wire": "bfloat16"})
    assert not entry.is_of({**job.settings, "seed": 2})


def test_a_finished_run_is_never_written_over_by_one_that_is_not(tmp_path: Path) -> None:
    (cell,) = cells.chosen("table1", "mnist/small/fedavg")
    job, file = Job.of(cell, 1, 4), tmp_path / "ledger.json"
    Ledger(file).add(job.entry("finished", figures={"gm_accuracy": 0.5}))
    Ledger(file).add(job.entry("stopped"))
    assert [one.state for one in Ledger(file).entries] == ["finished"]


def test_a_ledger_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger.json").write_text('{"format": 7}')
    with pytest.raises(CommandError, match="is no ledger of format 1"):
        Ledger(tmp_path / "ledger.json")
    (tmp_path / "ledger.json").write_text("{")
    with pytest.raises(CommandError, match="cannot be read"):
        Ledger(tmp_path / "ledger.json")


def test_the_time_left_is_that_of_the_most_alike() -> None:
    jobs = [Job.of(cell, 1, 10) for cell in cells.chosen("table1", "mnist/small/pfedme,fmnist/large/fedavg")]
    done = [
        Job.of(cell, 2, 10).entry("finished", seconds=seconds)
        for cell, seconds in zip(cells.chosen("table1", "mnist/pfedme"), (20.0, 40.0, 60.0), strict=True)
    ]
    assert seconds_left(jobs[:1], done, 1) == pytest.approx(20.0)  # the same cell with another seed
    assert seconds_left(jobs[1:], done, 1) == pytest.approx(60.0)  # as large
    assert seconds_left(jobs, done, 2) == pytest.approx(40.0)
    assert seconds_left(jobs, [], 1) is None


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--jobs", "0"], "--jobs takes a whole number of at least 1, not 0."),
        (["--rounds", "0"], "--rounds takes a whole number of at least 1, not 0."),
        (["--seeds", "1,x"], "--seeds takes whole numbers with commas between"),
        (
            ["--only", "mnits"],
            'table1 has no "mnits"; --only takes mnist, fmnist, cifar10, svhn; small, medium',
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    run: Callable[..., Any], here: Path, words: list[str], sentence: str
) -> None:
    runs = Runs()
    status, said = run(runs, "reproduce", "table1", *words)
    assert status == 2 and sentence in said and runs.started == [] and not (here / "runs").exists()
