"""The 95 % intervals of accuracies, against numbers from the literature and by brute force."""

import numpy as np
import pytest

from server_app.report.figure import interval
from server_app.rows import examples_of, wilson, with_interval


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_as_newcombe_1998_has_it(right: int, n: int, low: float, high: float) -> None:
    assert wilson(right / n, n) == pytest.approx((low, high), abs=6e-5)


def test_it_covers_in_95_of_100_draws() -> None:
    found = np.random.default_rng(0).binomial(60, 0.9, 4000) / 60
    bounds = [wilson(share, 60) for share in found]
    assert 0.93 < np.mean([low <= 0.9 <= high for low, high in bounds]) < 0.97


def test_the_examples_are_those_of_the_last_evaluation() -> None:
    rows = [
        {"round": "1", "site": "a", "pm_accuracy": "0.5", "n_test": "10"},
        {"round": "2", "site": "a", "pm_accuracy": "0.5", "n_test": "10"},
        {"round": "2", "site": "b", "pm_accuracy": "0.5", "n_test": "30"},
        {"round": "3", "site": "b", "status": "ok"},
    ]
    found = examples_of(rows, {"a": {"n_validation": 7}, "b": {"n_validation": 5}, "c": {"n_validation": 9}})
    assert found["accuracy"] == found["coverage"] == 40 and found["val_accuracy"] == 12
    rows.append({"round": "2", "site": "c", "pm_accuracy": "1.0", "n_test": "1000000"})
    found = examples_of(
        rows, {"a": {"n_validation": 7}, "b": {"n_validation": 10**6}, "c": {"n_validation": 9}}
    )
    assert found["accuracy"] == 40 and found["val_accuracy"] == 16, "what cannot be is not among the pooled"
    assert set(examples_of([]).values()) == {0} and examples_of(rows[:3])["val_accuracy"] == 0
    assert with_interval(81 / 263, 263) == "0.3080 (95 %: 0.2553 – 0.3662)"
    assert interval(0.5, 40) == "35.2–64.8\u202f%" and interval(None, 40) == interval(0.5, 0) == "–"
