"""What the figures draw, against places worked out by hand."""

import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch
from handmade import entropies, tally
from torch.nn.functional import softplus

from bayes_core.predict.histograms import SIGMA_BINS, sigma_counts
from server_app.report import certainty, clients, clusters, progress, render, weights
from server_app.report.figure import Figure, evenly, natural
from server_app.report.files import Run
from server_app.report.sites import sites as sites_of

RunOf = Callable[..., Run]


def shapes(figure: Figure | None, tag: str, style: str = "") -> list[ElementTree.Element]:
    """The elements of one kind in a figure; parsing also proves that the drawing is well-formed."""
    assert figure is not None
    root = ElementTree.fromstring(figure.svg)
    assert root.get("role") == "img" and len(root.get("aria-label") or "") > 20
    return [one for one in root.iter(tag) if style in (one.get("class") or "").split() or not style]


def hints(figure: Figure | None, tag: str) -> list[str]:
    return [(one.findtext("title") or "").replace("\u202f", " ") for one in shapes(figure, tag)]


def test_convergence_has_a_dot_for_every_evaluated_round(run_of: RunOf) -> None:
    run = run_of(rows=[
        {"round": 0, "pm_accuracy": 0.25, "gm_accuracy": 0.25}, {"round": 5},
        {"round": 10, "pm_accuracy": 0.75, "gm_accuracy": 0.5},
    ])  # fmt: skip
    figure = progress.convergence(run)
    assert hints(figure, "circle") == [
        "round 0: personal 25.0 %", "round 10: personal 75.0 %", "round 0: global 25.0 %", "round 10: global 50.0 %",
    ]  # fmt: skip
    first, last = shapes(figure, "circle", "pm")
    assert (float(first.get("cx") or 0), float(last.get("cx") or 0)) == (40, 378)  # labels such as "40 %"
    assert figure and figure.table and figure.table.rows[1][0] == "10"


def test_reliability_places_each_bin_at_its_confidence(run_of: RunOf) -> None:
    evidence = {"pm": tally(b7=(40, 20, 10), b14=(60, 60, 60)), "gm": tally(b14=(100, 98, 90))}
    figure = certainty.reliability(run_of(evaluations={3: evidence}))
    dots = shapes(figure, "circle", "pm")
    # x from 48 to 378, y from 262 up to 24: (½, ¼) and (1, 1)
    assert [(float(d.get("cx") or 0), float(d.get("cy") or 0)) for d in dots] == [(213, 202.5), (378, 24)]
    assert float(dots[1].get("r") or 0) > float(dots[0].get("r") or 0)
    assert hints(figure, "circle")[0] == "personal: 40 examples, confidence 50 %, right 25 %"
    assert figure and [words.replace("\u202f", " ") for _, words in figure.legend] == [
        "personal: 10 % too sure",
        "global: 8 % too sure",
    ]


def test_entropy_is_taken_at_the_centre_of_its_bin() -> None:
    assert certainty.entropy(entropies(b0=1)) == pytest.approx(0.025)
    assert certainty.entropy(entropies(b0=1, b19=3)) == pytest.approx((0.025 + 3 * 0.975) / 4)


def test_uncertainty_over_training(run_of: RunOf) -> None:
    uniform = math.log(2)  # of two classes
    run = run_of(
        rows=[
            {"round": 0, "pm_entropy": uniform, "pm_mutual_information": uniform / 2},
            {"round": 8, "pm_entropy": uniform / 4, "pm_mutual_information": 0.0},
        ],
        clients=[
            {"round": at, "site": site, "pm_entropy": share * uniform}
            for at, site, share in ((0, "a", 1), (0, "b", 1), (8, "a", 0.2), (8, "b", 0.3))
        ],
    )
    figure = certainty.uncertainty(run)
    assert len(shapes(figure, "path", "faint")) == 2 and len(shapes(figure, "path", "mutual")) == 1
    assert hints(figure, "circle") == ["site a: 20 %", "site b: 30 %"]
    assert figure and [words.replace("\u202f", " ") for _, words in figure.legend] == [
        "one client", "all, now 25 %", "mutual information, now 0 %",
    ]  # fmt: skip


def test_histograms_of_certainty_at_the_papers_rounds(run_of: RunOf) -> None:
    def told(place: int) -> dict[str, object]:
        sites = {str(i): {"pm_entropy": entropies(**{f"b{min(place + i, 19)}": 10.0})} for i in range(8)}
        return {"sites": sites}

    run = run_of(evaluations={0: told(19), 1: told(17), 5: told(12), 10: told(7), 20: told(3), 400: told(1)})
    assert [one.round for one in certainty.milestones(run.evaluations)] == [0, 1, 10, 400]
    figure = certainty.histograms(run)
    bars = hints(figure, "rect")
    assert len(bars) == 5 * 4, "one bin in each of five clients at four rounds"
    assert bars[-1] == "site 7, round 400: 100 % of the examples"
    first = min(float(bar.get("x") or 0) for bar in shapes(figure, "rect"))
    assert first > 7 * len("round 400"), "bars begin where the rows' names end"
    columns = re.findall(r">site (\d)</text>", figure.svg if figure else "")
    assert columns == ["0", "2", "4", "5", "7"], "from the surest to the least sure"


def test_without_personal_models_the_global_one_is_shown(run_of: RunOf) -> None:
    run = run_of(
        rows=[{"round": 0, "gm_entropy": 0.1, "gm_mutual_information": 0.0}],
        evaluations={0: {"sites": {"0": {"gm_entropy": entropies(b3=5)}}}},
        method="fedavg",
    )
    for figure in (certainty.uncertainty(run), certainty.histograms(run)):
        assert figure and "global model" in figure.caption
    assert not shapes(certainty.uncertainty(run), "path", "mutual"), "one network has no doubts of its own"


def test_sigma_shows_personal_and_global_on_one_axis(run_of: RunOf) -> None:
    personal = [0] * SIGMA_BINS
    personal[1160] = 30  # 10^(−4 + 1160/400) = 0.0794
    personal[1170] = 10
    run = run_of(
        evaluations={1: {"weights": {"sigma": personal}}},
        tensors={"w": torch.tensor([[0.0] * 4, [-2.5] * 4])},
    )
    figure = weights.sigma(run)
    assert figure and figure.legend[0][1] == "personal, median 0.0794"
    assert figure.legend[1][1] == "global, median 0.0785"  # softplus(−2.5) = 0.0789, in a bin from 0.0785
    assert sigma_counts(softplus(torch.tensor([-2.5])))[1158] == 1
    assert len(shapes(figure, "line", "ideal")) == 1, "the start is marked"


def test_sparse_weights(run_of: RunOf) -> None:
    counts = [0] * 40
    counts[0], counts[39] = 3, 1
    run = run_of(
        evaluations={1: {"weights": {"sigma": [4] + [0] * 1999, "lambda": counts, "nonzero": [0.25, 0.5]}}},
        tensors={"w": torch.tensor([[0.0] * 4, [-2.5] * 4, [0.1, 0.1, 0.1, 0.9]])},
        method="sfedbayes",
    )
    figure = weights.inclusion(run)
    assert figure and [words.replace("\u202f", " ") for _, words in figure.legend] == [
        "personal, 75 % below ½",
        "global, 75 % below ½",
    ]
    assert hints(weights.layers(run), "rect") == [
        "weight: personal 25 %", "weight: global 10 %", "bias: personal 50 %", "bias: global 90 %",
    ]  # fmt: skip


SQUARE = {
    "sites": ["a", "b", "c"], "labels": [1, 0, 1], "k": 2, "asked": 0, "suggested": 2,
    "eigenvalues": [0.0, 0.9, 1.1], "gap": 0.2, "rest": 0.01,
    "psi": [[0, 9, 1], [9, 0, 9], [1, 9, 0]],
}  # fmt: skip


def test_the_heat_map_is_ordered_by_cluster(run_of: RunOf) -> None:
    figure = clusters.heat_map(run_of(clusters=SQUARE, method="cfedbayes"))
    strips = hints(figure, "rect")
    assert strips[::2] == ["site b: cluster 0", "site a: cluster 1", "site c: cluster 1"]
    strong, pale = shapes(figure, "path", "h8"), shapes(figure, "path", "h0")
    assert len((strong[0].get("d") or "").split("M")) - 1 == 2 + 3, (
        "a and c are alike, seen from both, and each is itself"
    )
    assert len((pale[0].get("d") or "").split("M")) - 1 == 4
    assert figure and "1 within clusters and 9 between" in figure.caption


def test_the_heat_map_says_how_sure_the_clusters_are(run_of: RunOf) -> None:
    """A run of an earlier version, such as SQUARE, says nothing."""
    old = clusters.heat_map(run_of(clusters=SQUARE, method="cfedbayes"))
    assert old and old.caption.endswith("9 between them.")
    told = SQUARE | {"sure": True, "why": "They are apart.", "odd": [], "start": [5.0, 5.0, 5.0]}
    clear = clusters.heat_map(run_of("b", clusters=told, method="cfedbayes"))
    assert clear and clear.caption.endswith("2 clusters chosen, and that is clear. They are apart.")
    doubt = told | {"asked": 2, "suggested": 1, "sure": False, "why": "Too uneven."}
    unsure = clusters.heat_map(run_of("c", clusters=doubt, method="cfedbayes"))
    assert unsure and unsure.caption.endswith("1 cluster would be chosen, but that is not sure. Too uneven.")


def test_eigenvalues_shade_the_gap_that_told(run_of: RunOf) -> None:
    figure = clusters.eigenvalues(run_of(clusters=SQUARE, method="cfedbayes"))
    assert len(shapes(figure, "circle")) == 3 and len(shapes(figure, "rect", "gap")) == 1
    alike = SQUARE | {"suggested": 1, "k": 1, "labels": [0, 0, 0]}
    figure = clusters.eigenvalues(run_of("b", clusters=alike, method="cfedbayes"))
    assert not shapes(figure, "rect", "gap") and figure and "One kind of client" in figure.caption


def test_memberships_are_spans(run_of: RunOf) -> None:
    chosen = {"a": {0: 0, 1: 0, 2: 1, 3: 1}, "b": {0: 1, 3: 1}}
    rows = [{"round": at, "site": site, "cluster": k} for site, of in chosen.items() for at, k in of.items()]
    figure = clusters.memberships(run_of(clients=rows, method="cfedbayes"))
    assert sorted(hints(figure, "rect")) == [
        "site a, rounds 0 to 1: cluster 0", "site a, rounds 2 to 3: cluster 1", "site b, rounds 0 to 3: cluster 1",
    ]  # fmt: skip
    assert figure and "Clients changed their cluster 1 times" in figure.caption


def rows_of(count: int, **more: object) -> list[dict[str, object]]:
    return [
        {"round": 1, "site": f"s{i}", "n_test": 5, "pm_accuracy": 0.5 + i / 1000, "gm_accuracy": 0.4, **more}
        for i in range(count)
    ]


def test_a_row_for_each_client_with_labels_and_cluster(run_of: RunOf) -> None:
    sites = {"s0": {"labels": [3, 0], "group": 1}, "s1": {}}
    held = {"s0": {"n_train": 3, "n_test": 5}, "s1": {"n_train": 4, "n_test": 5}}
    run = run_of(clients=rows_of(2, cluster=1), evaluations={1: {"sites": sites}}, config={"sites": held})
    figure = clients.clients(run)
    assert hints(figure, "rect") == [
        "site s0: cluster 1", "site s0: 3 of class cat", "site s0: 0 of class dog", "site s1: cluster 1",
    ]  # fmt: skip
    assert len(shapes(figure, "path", "thin")) == 4, "a bar for each site and model"
    assert "site s0: personal 50.0 %, 95 % from 17.0 % to 83.0 %" in hints(figure, "circle")
    assert figure is not None and "Bars are 95 % intervals." in figure.caption
    table = sites_of(run)
    assert table.header == [
        "site",
        "training examples",
        "test examples",
        "personal accuracy (95 % interval)",
        "global accuracy (95 % interval)",
        "cluster",
        "true group",
        "classes",
        "last answer in round",
        "failed replies",
        "status",
    ]
    # Wilson of half of 5: (0.5 + z²/10 ± z √(0.25/5 + z²/100)) / (1 + z²/5), z = 1.96
    assert (
        table.rows[0][1:4] == ["3", "5", "50.0\u202f% (17.0–83.0\u202f%)"]
        and table.rows[0][3:5] != table.rows[1][3:5]
    )
    assert [line[5:8] for line in table.rows] == [["1", "1", "cat"], ["1", "–", "not told"]]


def test_cells_of_classes_can_be_seen(run_of: RunOf) -> None:
    for number, classes in enumerate((2, 10)):
        sites = {f"s{i}": {"labels": [3] * classes} for i in range(2)}
        names = [f"class {i}" for i in range(classes)]
        run = run_of(
            str(number), clients=rows_of(2), evaluations={1: {"sites": sites}}, config={"classes": names}
        )
        cells = [
            one for one in shapes(clients.clients(run), "rect") if "of class" in (one.findtext("title") or "")
        ]
        assert len(cells) == 2 * classes and min(float(one.get("width", 0)) for one in cells) > 11


def test_the_headline_of_numbers_is_written_as_it_is(run_of: RunOf) -> None:
    rows = [{"round": 1, "site": "a", "n_test": 5, "pm_rmse": 2.0, "gm_rmse": 3.0}]
    figure = clients.clients(run_of(clients=rows))
    assert figure is not None and figure.caption.startswith("RMSE on each client's own test data.")
    assert not shapes(figure, "path", "thin"), "an RMSE is no share, and has no bars"


def test_many_clients_become_a_curve_and_stay_in_the_table(run_of: RunOf) -> None:
    run = run_of(clients=rows_of(300), config={"sites": {}})
    figure = clients.clients(run)
    assert len(shapes(figure, "circle")) == 600
    assert len(sites_of(run).rows) == 300


def test_hundreds_of_clusters_members_are_thinned_out(run_of: RunOf) -> None:
    n = 300
    psi = [[float(abs(i - j)) for j in range(n)] for i in range(n)]
    many = SQUARE | {
        "sites": [str(i) for i in range(n)],
        "labels": [i % 9 for i in range(n)],
        "k": 9,
        "psi": psi,
    }
    page = render(run_of(clusters=many, clients=rows_of(n, cluster=3), method="cfedbayes"))
    assert "120 of 300 clients are shown." in page
    assert len(page) < 1_000_000


def test_failed_replies_have_a_figure_only_where_there_are_some(run_of: RunOf) -> None:
    assert progress.failures(run_of(rows=[{"round": 1, "clients_failed": 0}])) is None
    figure = progress.failures(run_of("b", rows=[{"round": 1, "clients_failed": 2}, {"round": 2}]))
    assert hints(figure, "circle") == ["round 1: 2 failed"]


def test_bytes_in_megabytes(run_of: RunOf) -> None:
    rows = [{"round": i, "bytes_up": 1_500_000, "bytes_down": 3_000_000} for i in (1, 2)]
    figure = progress.traffic(run_of(rows=rows))
    assert figure and "3 MB up and 6 MB down" in figure.caption
    assert [progress.size(n) for n in (999, 1500, 2.5e9)] == ["999 B", "1.5 kB", "2.5 GB"]


def test_names_sort_as_people_expect_and_samples_keep_the_ends() -> None:
    assert sorted(["s10", "s2", "a", "10", "9"], key=natural) == ["9", "10", "a", "s2", "s10"]
    assert evenly([str(i) for i in range(10)], 4) == ["0", "3", "6", "9"]
    assert evenly(["a", "b"], 4) == ["a", "b"]


OWN = [
    {"name": "epsilon", "title": "privacy <b>spent", "of": "round"},
    {"name": "mood", "title": "mood", "of": "client"},
]


def test_a_methods_own_columns_have_figures_and_cells(run_of: RunOf) -> None:
    run = run_of(
        rows=[{"round": at, "pm_accuracy": 0.5, "epsilon": at / 4} for at in range(3)],
        clients=[{"round": 2, "site": "0", "pm_accuracy": 0.5, "n_test": 5, "mood": "<i>good"}],
        config={"columns": OWN},
    )
    page = render(run)
    assert "<h2>pFedBayes</h2>" in page and '<figure id="own-epsilon"><h3>privacy &lt;b&gt;spent</h3>' in page
    assert "privacy &lt;b&gt;spent: 0 in round 0, 0.5 in round 2." in page
    assert "<td>&lt;i&gt;good</td>" in page and "<b>spent" not in page and "<i>" not in page
    assert "own-epsilon" not in render(
        run_of("b", rows=[{"round": 0, "pm_accuracy": 0.5}], config={"columns": OWN})
    )
    assert "<h2>pFedBayes</h2>" not in render(run_of("c", rows=[{"round": 0, "pm_accuracy": 0.5}]))
