"""The run in words, and what may go wrong in it."""

import math
import re
from collections.abc import Callable
from html import unescape

import pytest
from handmade import entropies, tally

from server_app.report import render
from server_app.report.certainty import verdict
from server_app.report.files import Run, Tally, Weights
from server_app.report.methods import MethodWords
from server_app.report.words import failure_rows, method_words, summary
from server_app.rows import duration

RunOf = Callable[..., Run]


def text(run: Run) -> list[str]:
    return [unescape(re.sub("<[^>]+>", "", part)).replace("\u202f", " ") for part in summary(run)]


def test_a_run_in_words(run_of: RunOf) -> None:
    run = run_of(
        rows=[
            {"round": 0, "pm_accuracy": 0.1, "gm_accuracy": 0.1, "pm_entropy": math.log(2)},
            {"round": 4, "pm_accuracy": 0.9, "gm_accuracy": 0.85, "pm_ece": 0.05, "gm_ece": 0.1, "seconds": 61,
             "pm_entropy": math.log(2) / 4, "bytes_up": 2_000_000, "bytes_down": 1_000_000, "clients_failed": 1},
        ],
        clients=[
            {"round": 4, "site": "0", "pm_accuracy": 0.9, "gm_accuracy": 0.8},
            {"round": 4, "site": "1", "pm_accuracy": 0.9, "gm_accuracy": 0.9},
        ],
        evaluations={
            4: {"pm": tally(b14=(20, 19, 18)), "gm": tally(b7=(20, 10, 17))},
        },
        rounds=4, method="pfedbayes", dataset="mnist",
    )  # fmt: skip
    setting, result, details, ending = text(run)
    assert setting == (
        "pFedBayes: every client learns a Gaussian over its network's weights, with one prior for all. "
        "2 clients with 20 training and 40 test examples of mnist (layout labels, size small). "
        "Model dnn with 4 weights."
    )
    assert result == (
        "After round 4, the personal models reach an accuracy of 90.0 %, the global model 85.0 % on all clients' "
        "test data. The personal model is better than the global one at 1 of 2 clients. Privacy: no guarantee."
    )
    assert details == (
        "The calibration error (ECE, the gap between confidence and accuracy) is 5 % for the personal model (5 % "
        "too sure) and 10 % for the global model (35 % too unsure). The uncertainty (entropy) of the personal "
        "predictions fell from 100 % of a uniform guess's in round 0 to 25 %."
    )
    assert ending == "4 of 4 rounds in 1 min 01 s, 3 MB of distributions exchanged, 1 reply failed."


def test_only_a_global_model(run_of: RunOf) -> None:
    run = run_of(rows=[{"round": 2, "gm_accuracy": 0.5}], method="fedavg")
    assert (
        text(run)[1]
        == "After round 2, the global model reaches an accuracy of 50.0 % on all clients' test data. "
        "Privacy: no guarantee."
    )


def test_what_is_promised_stands_beside_the_accuracy(run_of: RunOf) -> None:
    rows = [
        {"round": 1, "gm_accuracy": 0.4, "epsilon": 1.0},
        {"round": 2, "gm_accuracy": 0.5, "epsilon": 1.4567},
    ]
    run = run_of(rows=rows, method="fedavg", **{"dp-delta": 1e-05})
    assert (
        "Privacy: the global models of all rounds are (ε = 1.46, δ = 1e-05)-differentially private"
        in text(run)[1]
    )


def test_what_the_coordinator_saw_stands_beside_the_accuracy(run_of: RunOf) -> None:
    rows = [{"round": 2, "gm_accuracy": 0.5}]
    assert text(run_of(rows=rows, method="fedavg", **{"secure-sum": True}))[1].endswith(
        "Privacy: the coordinator saw uploads and measures only as sums over at least three sites (secure-sum); what "
        "these sums and the global models tell of one site is not bounded."
    )
    rows = [{"round": 2, "gm_accuracy": 0.5, "epsilon": 1.5}]
    both = {"secure-sum": True, "dp-delta": 1e-05}
    said = text(run_of("both", rows=rows, method="fedavg", **both))[1]
    assert (
        "(ε = 1.5, δ = 1e-05)-differentially private for a whole client's data, with noise of the sites' own, towards "
        "everybody (a client taken out counts as one whose change is 0: that it takes part is no secret; ε is of this "
        "run alone, and runs add up)" in said
    )


def test_single_examples_are_promised_something_too(run_of: RunOf) -> None:
    rows = [{"round": 2, "gm_accuracy": 0.5, "epsilon_examples": 7.98}]
    run = run_of(rows=rows, method="fedavg", **{"dp-delta": 1e-05})
    promised = (
        "Privacy: what left a site's training is (ε = 7.98, δ = 1e-05)-differentially private for a single"
    )
    assert promised in text(run)[1]
    assert "the figures on this page are not covered" in text(run)[1]


def test_regression_speaks_of_rmse(run_of: RunOf) -> None:
    page = render(
        run_of(rows=[{"round": 0, "pm_rmse": 4.0}, {"round": 2, "pm_rmse": 2.5, "pm_coverage": 0.9}])
    )
    assert "the personal models reach an RMSE of 2.5000</b>" in page
    assert "Lower is better." in page


def test_clusters_in_words(run_of: RunOf) -> None:
    run = run_of(
        rows=[{"round": 0, "pm_accuracy": 0.5, "adjusted_rand": 1.0}],
        clients=[{"round": 0, "site": str(i), "cluster": int(i > 2)} for i in range(5)],
        method="cfedbayes",
    )
    assert (
        "2 clusters of 3 and 2 clients; they fit the true groups with an adjusted Rand index of 1."
        in text(run)[2]
    )


def test_uploads_that_were_left_out_are_counted(run_of: RunOf) -> None:
    rows = [{"round": at, "site": "1", "status": "left out"} for at in (1, 2)]
    assert (
        "2 uploads, the least certain, were left out (aggregation-confidence)."
        in text(run_of(clients=rows))[3]
    )


def test_a_failed_run_says_why_and_is_escaped(run_of: RunOf) -> None:
    run = run_of(config={"state": "failed", "message": "<script>alert(1)</script> happened"}, rounds=9)
    page = render(run)
    assert "<script" not in page
    assert "The run failed</b>: &lt;script&gt;alert(1)&lt;/script&gt; happened" in page
    assert "No round has been measured yet." in page


def test_hostile_names_and_reasons_stay_text(run_of: RunOf) -> None:
    reason = 'failed: "><img src=x onerror=alert(1)>'
    run = run_of(
        rows=[{"round": 1, "clients_failed": 1, "pm_accuracy": 0.5}],
        clients=[{"round": 1, "site": "<i>0", "status": reason, "pm_accuracy": 0.5}],
        config={"classes": ["<b>a", "b"]},
        evaluations={1: {"sites": {"<i>0": {"labels": [3, 4], "pm_entropy": entropies(b1=4)}}}},
    )
    page = render(run)
    assert "<img" not in page and "<i>" not in page and "<b>a" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_failures_are_listed_with_their_rounds(run_of: RunOf) -> None:
    run = run_of(
        rows=[{"round": 1, "pm_accuracy": 0.5}, {"round": 10, "pm_accuracy": 0.5}],
        clients=[
            {"round": 1, "site": "0", "pm_accuracy": 0.5, "status": "ok"},
            {"round": 1, "site": "1", "status": "failed: no answer within 5 s"},
            {"round": 10, "site": "1", "pm_accuracy": 0.5, "status": "ok"},
        ],
    )
    assert failure_rows(run) == [["1", "1", "no answer within 5 s"], ["10", "0", "was not measured"]]


def test_a_hundred_failures_are_enough_for_a_page(run_of: RunOf) -> None:
    clients = [{"round": i, "site": "0", "status": "failed: late"} for i in range(130)]
    page = render(run_of(clients=clients, rows=[{"round": 129, "clients_failed": 1}]))
    assert page.count('<td class="why">late</td>') == 100 and "… and 30 more in clients.csv." in page


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ((100, 80, 80), "as sure as it is right"),
        ((100, 90, 80), "10 % too sure"),
        ((100, 70, 82), "12 % too unsure"),
    ],
)
def test_verdicts(counts: tuple[float, float, float], words: str) -> None:
    assert verdict(Tally(**tally(b5=counts))).replace("\u202f", " ") == words


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59, 61, 7260)] == ["0 s", "59 s", "1 min 01 s", "2 h 01 min"]


def test_a_method_is_described_by_the_run_itself(run_of: RunOf) -> None:
    words = {"title": "IFCA<b>", "idea": "clients & kinds", "clusters": True, "global_model": False}
    run = run_of(rows=[{"round": 1, "gm_accuracy": 0.5}], config={"method": words}, method="ifca")
    assert method_words(run) == MethodWords("IFCA<b>", "clients & kinds", True, False, True)
    first, second = summary(run)[:2]
    assert first.startswith("<b>IFCA&lt;b&gt;</b>: clients &amp; kinds.")
    assert "the global model (that of each client&#39;s cluster) reaches" in second
    assert "clusters.json is not in the run folder: no KL matrix." in run.missing
    assert run.weights == Weights(), "the checkpoint's are not of a global model"


def test_a_method_that_finds_its_clusters_on_the_way_has_no_file_of_them(run_of: RunOf) -> None:
    words = {"title": "IFCA", "idea": "", "clusters": True, "global_model": True, "openings": 0}
    assert not [
        one for one in run_of(config={"method": words}, method="ifca").missing if "clusters.json" in one
    ]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("cfedbayes", ("cFedBayes", True, True)),
        ("fedavg", ("FedAvg", False, True)),
        ("local", ("local", False, False)),
        ("never-heard-of", ("never-heard-of", False, True)),
        ("never_heard_of", ("never_heard_of", False, True)),
        ("../<x>", ("../<x>", False, True)),
    ],
)
def test_an_earlier_runs_method_speaks_for_itself(
    run_of: RunOf, method: str, words: tuple[str, bool, bool]
) -> None:
    said = method_words(run_of(method=method))
    assert (said.title, said.clusters, said.global_model) == words


@pytest.mark.parametrize(
    ("dataset", "partitions", "said"),
    [
        ("/somewhere/clinics", 2, "examples of clinics. "),
        ("digits", 0, "examples of the sites' own data. "),
        ("clinics", 2, "examples of clinics. "),  # a folder may have the name of a data set
        ("/x/own.npz", 2, "examples of own.npz (layout labels, size small). "),
    ],
)
def test_sites_with_data_of_their_own_have_no_layout(
    run_of: RunOf, dataset: str, partitions: int, said: str
) -> None:
    sites = {
        name: {"n_train": 1, "n_test": 1} for name in (("a", "b") if "clinics" in dataset else ("0", "1"))
    }
    assert said in text(run_of(dataset=dataset, config={"partitions": partitions, "sites": sites}))[0]


def test_a_failed_round_counts_though_it_has_no_row(run_of: RunOf) -> None:
    run = run_of(
        rows=[{"round": 2}], rounds=1, config={"failures": {"round": 3, "sites": {"a": "IndexError: odd"}}}
    )
    assert "2 of 1 round in" in text(run)[3] and "1 reply failed" in text(run)[3]
    assert failure_rows(run) == [["3", "a", "IndexError: odd"]]
