"""Reading run folders: whole, of an older version, with files missing or broken."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from handmade import MakeRun, entropies, tally

from server_app.report import render, write_report
from server_app.report.files import read_run
from server_app.stored import RunError

ROWS = [{"round": 0, "pm_accuracy": 0.1}, {"round": 1, "pm_accuracy": 0.9, "pm_entropy": 0.5, "seconds": 2}]


def test_a_whole_run_has_nothing_missing(make: MakeRun) -> None:
    evidence = {
        "pm": tally(b14=(20, 19, 18)),
        "sites": {"0": {"pm_entropy": entropies(b0=20)}},
        "weights": {},
    }
    run = read_run(make(rows=ROWS, evaluations={1: evidence}))
    assert run.missing == []
    assert (len(run.rows), len(run.evaluations), run.clusters) == (2, 1, None)
    assert run.weights.sigma is not None and sum(run.weights.sigma) == 4


def test_an_older_run_says_what_it_lacks(make: MakeRun) -> None:
    folder = make(rows=ROWS, method="cfedbayes")
    (folder / "checkpoint.safetensors").unlink()
    page = render(read_run(folder))
    for sentence in (
        "evaluations.jsonl is not in the run folder: no reliability diagram",
        "clusters.json is not in the run folder: no KL matrix.",
        "checkpoint.safetensors is not in the run folder: no weights of the global model.",
    ):
        assert sentence in page
    assert 'id="convergence"' in page and 'id="reliability"' not in page


def garbage(file: Path) -> None:
    file.write_bytes(b"\x00\xff\xfe not at all\n\x80")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:40])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, garbage) for name in ("rounds.csv", "clients.csv")),  # a CSV that is cut only has fewer rows
        *((name, damage) for damage in (garbage, cut)
          for name in ("clusters.json", "checkpoint.safetensors", "evaluations.jsonl")),
    ],
)  # fmt: skip
def test_a_broken_file_costs_its_figures_and_no_more(
    make: MakeRun, name: str, damage: Callable[[Path], None]
) -> None:
    square = {
        "sites": ["0", "1"], "labels": [0, 1], "k": 2, "asked": 0, "suggested": 2, "eigenvalues": [0.0, 1.0],
        "gap": 0.1, "rest": 0.0, "psi": [[0, 5], [5, 0]],
    }  # fmt: skip
    evidence = {
        "pm": tally(b14=(20, 19, 18)),
        "sites": {"0": {"pm_entropy": entropies(b0=20)}},
        "weights": {},
    }
    clients = [{"round": 1, "site": "0", "cluster": 0, "pm_accuracy": 0.9}]
    folder = make(rows=ROWS, clients=clients, evaluations={1: evidence}, clusters=square, method="cfedbayes")
    whole = render(read_run(folder))
    damage(folder / name)
    broken = render(read_run(folder))
    figures = {part.split('"')[0] for part in whole.split('<figure id="')[1:]}
    left = {part.split('"')[0] for part in broken.split('<figure id="')[1:]}
    lost = {
        "rounds.csv": {"result", "convergence", "uncertainty", "seconds"},
        "clients.csv": {"clients", "memberships"},
        "clusters.json": {"kl", "eigenvalues"},
        "checkpoint.safetensors": {"sigma"},
        "evaluations.jsonl": {"reliability", "histograms"},
    }[name]
    assert lost <= figures and left == figures - lost
    sentence = [line for line in read_run(folder).missing if name in line]
    assert len(sentence) == 1 and "\n" not in sentence[0], read_run(folder).missing


@pytest.mark.parametrize(
    "evidence",
    [
        {"sites": {"0": {"pm_entropy": [1, 2]}}},
        {"sites": 7},
        {"pm": {"bin_n": "many"}},
        {"pm": tally(b3=(0, 0, 0))},
        {"gm": 7},
        {"weights": {"sigma": [float("nan")] * 2000}},
    ],
)
def test_an_impossible_evaluation_is_named(make: MakeRun, evidence: dict[str, object]) -> None:
    folder = make(rows=ROWS, evaluations={1: evidence})
    missing = read_run(folder).missing
    assert len(missing) == 1 and missing[0].startswith("evaluations.jsonl cannot be used: ")
    write_report(folder)


def test_a_regression_has_no_bins_and_that_is_no_error(make: MakeRun) -> None:
    run = read_run(make(rows=ROWS, evaluations={1: {"pm": {"n": [5.0], "squared": [2.0]}}}))
    assert run.missing == [] and run.evaluations[0].pm is None


def test_clusters_of_different_lengths_are_named(make: MakeRun) -> None:
    crooked = {
        "sites": ["0", "1"], "labels": [0], "k": 1, "asked": 0, "suggested": 1, "eigenvalues": [0.0],
        "gap": 0, "rest": 0, "psi": [[0]],
    }  # fmt: skip
    missing = read_run(make(clusters=crooked, method="cfedbayes")).missing
    assert any("sites, labels and psi differ in length" in line for line in missing)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "config.json cannot be read"),
        ('{"format": 9}', "has format 9; this version reads format 1"),
        ('{"format": 1}', "lacks the run's settings; there is nothing to report"),
    ],
)
def test_without_a_config_there_is_a_sentence(make: MakeRun, content: str, sentence: str) -> None:
    folder = make()
    (folder / "config.json").write_text(content)
    with pytest.raises(RunError, match=sentence):
        write_report(folder)
    assert not (folder / "report.html").exists()


def test_the_weights_of_all_clusters_count(make: MakeRun) -> None:
    sparse = torch.tensor([[0.0] * 4, [-2.5] * 4, [0.0, 0.0, 1.0, 0.5]])
    run = read_run(
        make(tensors={"u0": sparse, "u1": sparse.clone()}, method="cfedbayes", family="spike-slab")
    )
    assert run.weights.sigma is not None and max(run.weights.sigma) == sum(run.weights.sigma) == 8
    assert run.weights.lambda_ is not None and (run.weights.lambda_[0], run.weights.lambda_[20]) == (4, 2)
    assert run.weights.nonzero == pytest.approx([1 / 3, 0.5])  # of `weight` (three) and `bias` (one)


def test_local_has_no_global_weights(make: MakeRun) -> None:
    assert read_run(make(method="local")).weights.sigma is None
