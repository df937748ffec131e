"""The figures of the closing tables, against numbers worked out by hand."""

from rich.console import Console

from fedbayes.cli.tables import run_table, seeds_table
from server_app.rows import best, last, mean_and_sd


def rows(*scores: tuple[int, str, str]) -> list[dict[str, str]]:
    return [{"round": str(at), "pm_accuracy": pm, "gm_accuracy": gm} for at, pm, gm in scores]


def text(table: object) -> list[list[str]]:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table)
    return [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in capture.get().splitlines() if "│" in line
    ]


def test_last_is_the_last_evaluated_round() -> None:
    run = rows((0, "0.1", ""), (10, "0.5", ""), (11, "", ""))
    assert last(run, "pm_accuracy") == 0.5
    assert last(run, "gm_accuracy") is None
    assert last([], "pm_accuracy") is None


def test_best_looks_at_the_last_hundred_rounds_only() -> None:
    run = rows((100, "0.9", "0.1"), (101, "0.6", "0.2"), (150, "0.8", "0.2"), (200, "0.7", "0.1"))
    assert best(run, "pm_accuracy") == (0.8, 150)  # round 100 lies outside 101…200
    assert best(run, "gm_accuracy") == (0.2, 101)  # the first of two equal ones
    assert best(rows((0, "0.9", ""), (1, "0.2", "")), "pm_accuracy") == (0.2, 1)  # 0 is untrained
    assert best(rows((1, "", "")), "pm_accuracy") is None


def test_a_run_without_personal_models_shows_a_dash() -> None:
    table = text(run_table("a", rows((10, "", "0.75"))))
    assert ["accuracy", "–", "0.7500"] in table
    assert ["best accuracy on test data, last 100 rounds", "–", "0.7500 (round 10)"] in table


def test_mean_and_sample_deviation() -> None:
    # mean of 1, 2, 3, 6 is 3; squared deviations 4 + 1 + 0 + 9 = 14; 14 / 3 = 4.6667; its root is 2.1602
    assert mean_and_sd([1.0, 2.0, 3.0, 6.0]) == "3.0000 ± 2.1602"
    assert mean_and_sd([0.5]) == "0.5000"
    assert mean_and_sd([0.5, None]) == "–"
    assert mean_and_sd([]) == "–"


def test_seeds_table() -> None:
    runs = {
        1: rows((10, "0.8", "0.4"), (20, "0.6", "0.5")),
        2: rows((10, "0.6", "0.4"), (20, "0.8", "0.3")),
    }
    table = text(seeds_table("s", runs))
    # last round: PM 0.6 and 0.8, GM 0.5 and 0.3; sd of two numbers is their distance / √2
    assert ["accuracy, last round", "0.7000 ± 0.1414", "0.4000 ± 0.1414"] in table
    # best: PM 0.8 and 0.8, GM 0.5 and 0.4
    assert ["best accuracy on test data, last 100 rounds", "0.8000 ± 0.0000", "0.4500 ± 0.0707"] in table
    assert not any(line[0].startswith("NLL") for line in table)


def test_a_methods_own_columns_stand_below_the_table() -> None:
    rows = [
        {"round": "1", "pm_accuracy": "0.5", "spent": "0.25"},
        {"round": "2", "pm_accuracy": "0.5", "spent": ""},
    ]
    assert run_table("a", rows).caption == "spent 0.25 (round 1)"
    assert run_table("a", [{"round": "1", "pm_accuracy": "0.5", "seconds": "2"}]).caption is None


def test_shares_of_test_examples_have_their_intervals() -> None:
    table = text(run_table("a", [{"round": "1", "pm_rmse": "2", "pm_coverage": "0.5"}], {"coverage": 100}))
    place = [line[0] for line in table].index("targets within 90 % intervals")
    assert table[place + 1] == ["95 % interval of it", "0.4038 – 0.5962", "–"]  # after Wilson, 50 of 100
    held = text(run_table("a", [{"round": "1", "pm_val_accuracy": "0.5"}], {"val_accuracy": 100}))
    assert held[-1] == table[place + 1]
