"""Abstention, intervals by predicted number and calibration at each site, against figures worked out by hand."""

from collections.abc import Callable

import pytest
from test_figures import hints, shapes

from bayes_core.predict.histograms import SURE_BINS, VALUE_BINS
from server_app.report import render, trust
from server_app.report.files import Run

RunOf = Callable[..., Run]


def answers(wrong: dict[int, int], right: dict[int, int]) -> list[float]:
    return [float(part.get(place, 0)) for part in (wrong, right) for place in range(SURE_BINS)]


def test_the_surest_are_answered_first() -> None:
    assert trust.curve(answers({0: 3, 10: 1}, {0: 1, 10: 3, 39: 2})) == [
        (0.2, 1.0),
        (0.6, 5 / 6),
        (1.0, 0.6),
    ]


def test_abstention_draws_a_dot_for_each_bin(run_of: RunOf) -> None:
    evidence = {"answers": {"pm": answers({0: 3, 10: 1}, {0: 1, 10: 3, 39: 2})}}
    figure = trust.abstention(run_of(evaluations={2: evidence}))
    assert hints(figure, "circle") == [
        "personal: 20 % answered, 100 % right",
        "personal: 60 % answered, 83.3 % right",
        "personal: 100 % answered, 60 % right",
    ]
    assert figure and figure.table
    assert [row[1].replace("\u202f", " ") for row in figure.table.rows] == ["100.0 %", "60.0 %", "20.0 %"]


def values(**bins: tuple[float, float, float]) -> list[float]:
    return [bins.get(f"b{place}", (0.0, 0.0, 0.0))[part] for part in range(3) for place in range(VALUE_BINS)]


def test_intervals_by_predicted_number(run_of: RunOf) -> None:
    evidence = {"values": {"pm": values(b4=(20, 18, 40), b5=(10, 7, 50), b9=(2, 0, 9))}}
    config = {"classes": [], "agreement": {"target_mean": 100.0, "target_deviation": 8.0}}
    figure = trust.by_value(run_of(evaluations={2: evidence}, config=config))
    told = [
        "personal, about 98: 20 examples, 90 % within, width 2",
        "personal, about 102: 10 examples, 70 % within, width 5",
    ]
    assert hints(figure, "circle") == [told[0], told[1]] * 1 + [told[0], told[1]]
    assert figure and figure.table and len(figure.table.rows) == 3, "small bins are in the table"
    assert figure.legend[0][1].replace("\u202f", " ") == "personal: at least 70 % (about 102)"


def test_each_site_with_its_interval(run_of: RunOf) -> None:
    rows = [
        {"round": 2, "site": site, "n_test": 100, "pm_accuracy": 0.8, "gm_accuracy": 0.8, "status": "ok"}
        for site in ("s10", "s2")
    ]
    told = {"s2": {"pm_excess": 0.15, "gm_excess": 0.01}, "s10": {"pm_excess": -0.02}}
    run = run_of(clients=rows, evaluations={2: {"sites": told}})
    found = trust.at_sites(run, True)
    assert list(found) == ["s2", "s10"] and set(found["s10"]) == {"pm"}
    # Wilson's interval of 80 of 100 is 0.711 … 0.867: with a confidence of 0.95 the gap is 0.083 … 0.239
    assert found["s2"]["pm"] == pytest.approx((0.15, 0.0834, 0.2388), abs=1e-3)
    figure = trust.by_site(run)
    assert len(shapes(figure, "circle")) == 3 and figure is not None
    assert (
        "Personal model off by more than chance at 1 of 2 sites; global model off by more than chance at 0"
        in figure.caption
    )
    assert 'id="by-site"' in render(run)


def test_numbers_have_their_coverage_at_each_site(run_of: RunOf) -> None:
    rows = [{"round": 2, "site": "a", "n_test": 50, "pm_coverage": 0.6, "pm_rmse": 1.0, "status": "ok"}]
    run = run_of(clients=rows, config={"classes": []})
    assert trust.at_sites(run, False)["a"]["pm"][0] == 0.6
    figure = trust.by_site(run)
    assert figure and "Left of the dashed line intervals are too narrow" in figure.caption


def test_without_evidence_there_are_no_figures(run_of: RunOf) -> None:
    run = run_of()
    assert trust.abstention(run) is trust.by_value(run) is trust.by_site(run) is None
