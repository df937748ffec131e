"""Split conformal sets and intervals, by hand and by their guarantee."""

import math

import pytest
import torch

from bayes_core.predict.conformal import (
    Promise,
    class_scores,
    class_sets,
    interval,
    least,
    measured_intervals,
    measured_sets,
    number_scores,
    promised,
    promised_by_group,
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
    sets = class_sets(P, Promise(0.9, (0.65,)))
    assert sets.tolist() == [[True, False, False], [True, True, False], [False, False, True]]
    covered, size = measured_sets(P, y, Promise(0.9, (0.65,)))
    assert covered == pytest.approx(2 / 3) and size == pytest.approx(4 / 3)
    assert class_sets(P, Promise(0.9, (0.05,))).sum(-1).tolist() == [1, 1, 1], (
        "the likeliest class is always there"
    )
    assert bool(class_sets(P, Promise(0.9, (math.inf,))).all())


def test_intervals_follow_the_predicted_scale() -> None:
    found = Forecast(torch.tensor([[0.0, 10.0]]).double(), torch.tensor([[1.0, 3.0]]).double())
    assert number_scores(found, torch.tensor([2.0, 4.0])).tolist() == pytest.approx([2.0, 2.0])
    low, high = interval(found, Promise(0.9, (2.0,)))
    assert low.tolist() == [-2.0, 4.0] and high.tolist() == [2.0, 16.0]
    covered, width = measured_intervals(found, torch.tensor([2.1, 5.0]), Promise(0.9, (2.0,)))
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


def test_groups_by_hand() -> None:
    """At level 0.5 a group takes one example: of five, two are the cuts, and each of the others is a group.

    The quiet one's own threshold would be 0.1; that of all, the third of five, is 0.3.
    """
    sd = torch.tensor([3.0, 1.0, 2.0, 5.0, 4.0])
    found = promised_by_group(torch.tensor([0.3, 0.1, 0.2, 0.5, 0.4]), sd, 0.5)
    assert found.thresholds == pytest.approx((0.3, 0.3, 0.5)) and found.cuts == (2.0, 4.0)
    assert found.threshold(torch.tensor([0.5, 3.9, 4.1])).tolist() == pytest.approx([0.3, 0.3, 0.5])
    forecast = Forecast(torch.zeros(1, 3).double(), torch.tensor([[1.0, 3.0, 6.0]]).double())
    assert interval(forecast, found)[1].tolist() == pytest.approx([0.3, 0.9, 3.0])
    in_units = Forecast(forecast.means * 10, forecast.noises * 10)
    assert interval(in_units, found.scaled(10.0))[1].tolist() == pytest.approx([3.0, 9.0, 30.0])
    assert Promise.of(found.numbers) == found


@pytest.mark.parametrize(("n", "groups"), [(9, 1), (18, 1), (19, 2), (28, 2), (29, 3), (100, 3)])
def test_as_many_groups_as_there_are_examples_for(n: int, groups: int) -> None:
    found = promised_by_group(torch.rand(n), torch.rand(n), 0.9)
    assert len(found.thresholds) == groups == len(found.cuts) + 1 and max(found.thresholds) < math.inf


def test_one_group_where_they_cannot_be_told_apart_and_as_files_had_it() -> None:
    scores = torch.rand(60)
    assert promised_by_group(scores, torch.ones(60), 0.9) == promised(scores, 0.9)
    assert Promise.of([0.9, 1.5]) == Promise(0.9, (1.5,))
    with pytest.raises(ValueError, match="2, 4, … numbers, not 3"):
        Promise.of([0.9, 1.5, 2.0])


def test_the_promise_is_kept_in_every_group() -> None:
    """Noise that the model takes for the same everywhere though it grows with what it says: 3000 times 29 examples."""
    draw = torch.Generator().manual_seed(0)
    said = 1 + torch.rand(3000, 30, generator=draw).double()
    scores = (torch.randn(3000, 30, generator=draw) * said**2).abs() / said
    held: list[list[bool]] = [[], [], []]
    for one, sd in zip(scores, said, strict=True):
        found = promised_by_group(one[:-1], sd[:-1], 0.9)
        group = int(torch.bucketize(sd[-1], torch.tensor(found.cuts)))
        held[group].append(bool(one[-1] <= found.thresholds[group]))
    # at least 0.9, give or take three standard errors; the noisy ones, whose own threshold it is, hardly more
    assert all(sum(group) / len(group) > 0.9 - 3 * 0.3 / len(group) ** 0.5 for group in held)
    assert sum(held[2]) / len(held[2]) < 0.93
    alone = [float(one[-1]) <= quantile(one[:-1], 0.9) for one in scores]
    noisy = [right for right, sd in zip(alone, said, strict=True) if sd[-1] > 1.7]
    assert sum(noisy) / len(noisy) < 0.87, "one threshold for all leaves the noisy ones out"
