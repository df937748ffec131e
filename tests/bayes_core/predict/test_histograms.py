"""Binned counts against examples worked out by hand and against numpy."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from bayes_core import Gaussian, Point, SpikeSlab
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.histograms import (
    SIGMA_BINS,
    SURE_BINS,
    VALUE_BINS,
    answer_counts,
    entropy_counts,
    relative_entropy,
    sigma_counts,
    sigma_edge,
    value_counts,
    weight_counts,
)


def rho(*sigma: float) -> torch.Tensor:
    """The inverse of softplus."""
    return torch.tensor([math.log(math.expm1(value)) for value in sigma], dtype=torch.float64)


def test_entropy_of_a_certain_an_even_and_a_uniform_guess() -> None:
    p = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [0.25] * 4])
    assert relative_entropy(p).tolist() == pytest.approx([0.0, 0.5, 1.0])
    # 20 bins: 0 in the first, ½ opens the eleventh, 1 counts in the last
    assert entropy_counts(p) == [1] + [0] * 9 + [1] + [0] * 8 + [1]


def test_sigma_bins_are_those_of_numpy() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.randn(5000, generator=random, dtype=torch.float64) - 2.5
    edges = [sigma_edge(i) for i in range(SIGMA_BINS + 1)]
    assert (edges[0], edges[-1]) == pytest.approx((1e-4, 10.0))
    expected, _ = np.histogram(softplus(values).numpy(), edges)
    assert sigma_counts(softplus(values)) == expected.tolist()


def test_a_sigma_beyond_the_bins_counts_in_the_outermost() -> None:
    counts = sigma_counts(torch.tensor([1e-6, 24.0]))
    assert (counts[0], counts[-1], sum(counts)) == (1, 1, 2)


def test_each_family_tells_what_it_has() -> None:
    v = torch.stack([torch.zeros(4), rho(0.1, 0.1, 0.2, 0.2).float(), torch.tensor([0.0, 0.5, 0.9, 1.0])])
    assert weight_counts(Point(), v[:1], [4]) == {}
    assert weight_counts(Gaussian(), v[:2], [4]).keys() == {"sigma"}
    assert weight_counts(SpikeSlab(gated=False), v, [4]).keys() == {"sigma"}
    sparse = weight_counts(SpikeSlab(), v, [1, 3])
    assert sorted(sparse["sigma"])[-2:] == [2, 2] and sum(sparse["sigma"]) == 4
    # 40 bins: 0 in the first, ½ opens number 20, 0.9 number 36 (float32's 0.9 is just below), 1 in the last
    on = {place: count for place, count in enumerate(sparse["lambda"]) if count}
    assert on == {0: 1, 20: 1, 35: 1, 39: 1}
    assert sparse["nonzero"] == pytest.approx([0.0, 0.8])


def test_right_and_wrong_answers_by_how_sure_they_are() -> None:
    """Eight bins for each power of ten of 1 − confidence: ½ in the third, 0.0015 in the 23rd, 0 in the last."""
    p = torch.tensor([[0.5, 0.5], [0.0015, 0.9985], [1.0, 0.0], [0.0, 1.0]])
    counts = answer_counts(p, torch.tensor([0, 0, 0, 1]))
    wrong, right = counts[:SURE_BINS], counts[SURE_BINS:]
    assert {place: n for place, n in enumerate(wrong) if n} == {22: 1}
    assert {place: n for place, n in enumerate(right) if n} == {2: 1, SURE_BINS - 1: 2}


def test_intervals_by_predicted_number() -> None:
    """Targets of mean 10 and deviation 4, so that bins are 2 wide, the sixth from 10 to 12."""
    means = torch.tensor([[11.0, 11.5, -50.0]], dtype=torch.float64)
    found = Forecast(means, torch.tensor([[1.0, 2.0, 1.0]], dtype=torch.float64))
    told = value_counts(found, torch.tensor([12.0, 30.0, -50.0]), (10.0, 4.0))
    n, within, width = (told[i * VALUE_BINS : (i + 1) * VALUE_BINS] for i in range(3))
    assert n == [1, 0, 0, 0, 0, 2, 0, 0, 0, 0] and within == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert width[5] == pytest.approx(2 * 1.644854 * 3, abs=1e-4) and width[0] == pytest.approx(
        3.289707, abs=1e-4
    )
