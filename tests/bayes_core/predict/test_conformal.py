"""Split conformal sets and intervals, by hand and by their guarantee."""

import math

import pytest
import torch

from bayes_core.predict.conformal import (
    class_scores,
    class_sets,
    interval,
    least,
    measured_intervals,
    measured_sets,
    number_scores,
    quantile,
)
from bayes_core.predict.forecast import Forecast

P = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.36, 0.24], [0.05, 0.05, 0.9]])


def test_the_rank_by_hand() -> None:
    scores = torch.tensor([0.5, 0.1, 0.9, 0.3])
    assert quantile(scores, 0.5) == pytest.approx(0.5)  # ⌈5·0.5⌉ = 3rd
    assert quantile(scores, 0.8) == pytest.approx(0.9)  # 4th
    assert quantile(scores, 0.81) == math.inf  # there is no 5th
    assert quantile(torch.arange(9.0), 0.9) == 8.0 and quantile(torch.arange(8.0), 0.9) == math.inf


@pytest.mark.parametrize(("level", "n"), [(0.9, 9), (0.5, 1), (0.8, 4), (0.95, 19), (0.99, 99), (0.1, 1)])
def test_how_many_examples_it_takes(level: float, n: int) -> None:
    assert least(level) == n
    assert quantile(torch.zeros(n), level) == 0.0
    assert n == 1 or quantile(torch.zeros(n - 1), level) == math.inf


def test_sets_by_hand() -> None:
    y = torch.tensor([1, 0, 2])
    assert class_scores(P, y).tolist() == pytest.approx([0.8, 0.6, 0.1])
    sets = class_sets(P, 0.65)
    assert sets.tolist() == [[True, False, False], [True, True, False], [False, False, True]]
    covered, size = measured_sets(P, y, 0.65)
    assert covered == pytest.approx(2 / 3) and size == pytest.approx(4 / 3)
    assert class_sets(P, 0.05).sum(-1).tolist() == [1, 1, 1], "the likeliest class is always there"
    assert bool(class_sets(P, math.inf).all())


def test_intervals_follow_the_predicted_scale() -> None:
    found = Forecast(torch.tensor([[0.0, 10.0]]).double(), torch.tensor([[1.0, 3.0]]).double())
    assert number_scores(found, torch.tensor([2.0, 4.0])).tolist() == pytest.approx([2.0, 2.0])
    low, high = interval(found, 2.0)
    assert low.tolist() == [-2.0, 4.0] and high.tolist() == [2.0, 16.0]
    covered, width = measured_intervals(found, torch.tensor([2.1, 5.0]), 2.0)
    assert covered == 0.5 and width == pytest.approx(8.0)


def test_the_promise_is_kept_by_a_bad_model() -> None:
    """The classes are drawn from other probabilities than the model says; 2000 times 20 examples and a new one."""
    generator = torch.Generator().manual_seed(0)
    said = torch.rand(2000, 21, 4, generator=generator).softmax(-1)
    true = torch.multinomial(torch.tensor([0.1, 0.1, 0.1, 0.7]), 2000 * 21, True, generator=generator)
    scores = 1 - said.gather(-1, true.view(2000, 21, 1))[..., 0]
    held = [float(one[-1]) <= quantile(one[:-1], 0.8) for one in scores]
    # between 0.8 and 0.8 + 1/21, give or take three standard errors
    assert 0.8 - 0.027 < sum(held) / 2000 < 0.8 + 1 / 21 + 0.027
