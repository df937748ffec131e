"""Runs side by side: groups by what differs, mean ± sd by hand."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
from handmade import MakeRun, tally, write_csv

from fedbayes.launch.run_folder import saved_rounds
from server_app.report import render, tiles
from server_app.report.compare import write_comparison
from server_app.report.files import Run, read_run
from server_app.report.groups import group, remarks
from server_app.rows import counted
from server_app.stored import RunError

RunOf = Callable[..., Run]


def scores(pm: float | None, gm: float, rounds: int = 4) -> list[dict[str, object]]:
    return [
        {"round": 0, "pm_accuracy": None if pm is None else 0.1, "gm_accuracy": 0.1},
        {"round": rounds, "pm_accuracy": pm, "gm_accuracy": gm, "pm_ece": None if pm is None else 0.02,
         "gm_entropy": 0.3, "seconds": 2, "bytes_up": 1e6, "bytes_down": 1e6},
    ]  # fmt: skip


@pytest.fixture
def sweep(make: MakeRun) -> list[Path]:
    """Two seeds of pFedBayes, two of FedAvg."""
    evidence = {
        "pm": tally(b14=(10, 9, 9)), "gm": tally(b14=(10, 9, 8)),
    }  # fmt: skip
    clients = [{"round": 4, "site": "0", "pm_accuracy": 0.8, "gm_accuracy": 0.5}]
    folders = [
        make(f"p{seed}", scores(pm, 0.5), clients, {4: evidence}, seed=seed, rounds=4)
        for seed, pm in ((1, 0.8), (2, 0.6))
    ]
    return folders + [
        make(f"f{seed}", scores(None, gm), seed=seed, method="fedavg", rounds=4)
        for seed, gm in ((1, 0.4), (2, 0.7))
    ]


def test_groups_are_named_by_what_differs(run_of: RunOf) -> None:
    runs = [
        run_of("a", seed=1), run_of("b", seed=2, threads=7), run_of("c", zeta=2.0), run_of("d", method="fedavg"),
    ]  # fmt: skip
    groups = group(runs)
    assert [one.title for one in groups] == ["pFedBayes", "pFedBayes, zeta=2.0", "FedAvg"]
    assert [[run.name for run in one.runs] for one in groups] == [["a", "b"], ["c"], ["d"]]
    assert groups[0].values == {"method": "pfedbayes", "zeta": 10.0}
    assert [one.title for one in group(runs[:2])] == ["all runs"]


def test_the_number_of_clients_tells_runs_apart(run_of: RunOf) -> None:
    groups = group([run_of("a", config={"clients": 10}), run_of("b", config={"clients": 20})])
    assert [one.title for one in groups] == ["clients=10", "clients=20"]


def test_markdown_and_csv_have_the_means(sweep: list[Path], tmp_path: Path) -> None:
    page, markdown, sheet = write_comparison(sweep, tmp_path / "out" / "both")
    lines = markdown.read_text().splitlines()
    assert lines[0].startswith("| | runs | PM accuracy | GM accuracy | PM calibration error (ECE) |")
    # sd of two numbers is their distance / √2
    assert lines[2].startswith(
        "| pFedBayes | 2 | 0.7000 ± 0.1414 | 0.5000 ± 0.0000 | 0.0200 ± 0.0000 | 2.00 "
    )
    assert lines[3].startswith("| FedAvg | 2 | – | 0.5500 ± 0.2121 | – |")
    assert "4 runs in 2 groups that differ in method" in markdown.read_text()
    with sheet.open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert (first["method"], first["seeds"], first["names"]) == ("pfedbayes", "1 2", "p1 p2")
    assert float(first["pm_accuracy_mean"]) == pytest.approx(0.7)
    assert float(first["pm_accuracy_sd"]) == pytest.approx(0.02**0.5)
    assert second["pm_accuracy_mean"] == second["pm_accuracy_sd"] == ""
    assert float(second["megabytes_mean"]) == 2
    text = page.read_text()
    for figure in (
        "convergence-pm", "convergence-gm", "clients", "reliability-pm", "reliability-gm", "uncertainty",
        "seconds", "megabytes",
    ):  # fmt: skip
        assert f'id="{figure}"' in text
    assert "The highest global accuracy: FedAvg with 0.5500 ± 0.2121, before pFedBayes" in text


def test_what_a_reader_must_know_is_said(make: MakeRun, tmp_path: Path) -> None:
    whole = make("a", scores(0.8, 0.5), seed=1)
    early = make("b", scores(0.7, 0.5, rounds=2), seed=1, config={"state": "stopped"})
    markdown = write_comparison([whole, early], tmp_path / "x")[1].read_text()
    assert "- b is stopped (2 of 100 rounds)." in markdown
    assert "- all runs: several runs have the same seed, so the sd says little." in markdown
    assert "- a: evaluations.jsonl is not in the run folder" in markdown


def test_rounds_are_counted_as_the_command_counts_them(make: MakeRun, tmp_path: Path) -> None:
    """The checkpoint of round 7 was saved, and its row was not when the run stopped."""
    folder = make("cut", rows=[{"round": at} for at in range(8)], rounds=25, config={"state": "stopped"})
    write_csv(folder / "rounds.csv", [{"round": at} for at in range(7)])
    assert saved_rounds(folder) == 7
    assert remarks(group([read_run(folder)]))[0] == "cut is stopped (7 of 25 rounds)."
    assert "7 of 25 rounds in" in render(read_run(folder))


def test_one_round_is_no_rounds(make: MakeRun) -> None:
    run = read_run(make("one", rows=[{"round": 0}, {"round": 1, "pm_accuracy": 0.5, "n_test": 4}], rounds=1))
    page = render(run)
    assert "1 of 1 round in" in page and "1 rounds" not in page
    assert [words for _, figure, words in tiles(run) if figure == "1"] == ["round of 1"]
    assert counted(1, "round") == "1 round" and counted(2, "round") == "2 rounds"


def test_one_seed_without_a_figure_leaves_a_dash(make: MakeRun, tmp_path: Path) -> None:
    folders = [make("a", scores(0.8, 0.5), seed=1), make("b", scores(None, 0.5), seed=2)]
    _, markdown, sheet = write_comparison(folders, tmp_path / "x")
    assert "| all runs | 2 | – | 0.5000 ± 0.0000 |" in markdown.read_text()
    with sheet.open(newline="") as stream:
        assert next(csv.DictReader(stream))["pm_accuracy_mean"] == ""


def test_a_folder_without_a_run_is_named(make: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"There is no run in .*empty"):
        write_comparison([make("a"), tmp_path / "empty"], tmp_path / "x")


def test_one_run_has_an_interval_and_equals_share_the_lead(make: MakeRun, tmp_path: Path) -> None:
    clients = [{"round": 4, "site": str(i), "gm_accuracy": 0.5, "n_test": 50} for i in range(2)]
    folders = [make(f"m{beta}", scores(None, 0.5), clients, rounds=4, beta=float(beta)) for beta in (2, 3)]
    page, markdown, sheet = write_comparison(folders, tmp_path / "both")
    assert "| GM accuracy | GM accuracy, 95 % interval |" in markdown.read_text()
    # Wilson of 50 of 100: (0.5 + z²/200 ± z √(0.25/100 + z²/40000)) / (1 + z²/100)
    assert "| 0.5000 | 0.404–0.596 |" in markdown.read_text()
    with sheet.open(newline="") as stream:
        first, _ = csv.DictReader(stream)
    assert float(first["gm_accuracy_interval_low"]) == pytest.approx(0.4038, abs=1e-4)
    assert float(first["gm_accuracy_interval_high"]) == pytest.approx(0.5962, abs=1e-4)
    text = page.read_text()
    assert "The highest global accuracy: beta=2.0 and beta=3.0, all with 0.5000." in text
    assert "<td>failed replies</td><td class=n>0</td>" in text
