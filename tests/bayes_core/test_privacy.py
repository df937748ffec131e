"""Clip, noise and ε, each against what it should be by another way."""

import math

import numpy as np
import pytest
import torch

from bayes_core.privacy import clip_jointly, delta_of, epsilon_of, system_normal


@pytest.mark.parametrize(
    ("noise", "rounds", "epsilon"),
    # The first by a privacy-loss distribution (dp-accounting 0.6; more of them in test_accounting.py); of the others z
    # is rounded.
    [(5.0, 100, 9.9973), (6.0, 100, 8.0), (13.9, 100, 3.0), (17.0, 800, 8.0)],
)
def test_epsilon_against_published_figures(noise: float, rounds: int, epsilon: float) -> None:
    found = epsilon_of(math.sqrt(rounds) / noise, 1e-5)
    assert found == pytest.approx(epsilon, abs=5e-5 if epsilon == 9.9973 else 0.1)


@pytest.mark.parametrize("m", [0.1, 0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_epsilon_and_delta_are_each_others_inverse(m: float, delta: float) -> None:
    epsilon = epsilon_of(m, delta)
    assert delta_of(epsilon, m) <= delta
    assert epsilon == 0 or delta_of(epsilon * (1 - 1e-6), m) > delta


def test_delta_by_the_likelihood_ratio_of_two_worlds() -> None:
    # Worlds N(0, 1) and N(m, 1): δ(ε) = E[(1 − e^(ε − L))⁺], L the log ratio of what the second world gives.
    m, epsilon = 1.3, 0.8
    x = m + np.random.default_rng(1).standard_normal(2_000_000)
    ratio = m * x - m * m / 2
    found = np.clip(1 - np.exp(epsilon - ratio), 0, None)
    assert delta_of(epsilon, m) == pytest.approx(found.mean(), abs=4 * found.std() / math.sqrt(len(found)))


def test_no_noise_is_no_privacy_and_no_release_costs_nothing() -> None:
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert epsilon_of(0.0, 1e-5) == 0
    assert epsilon_of(1e-9, 1e-5) == 0  # δ alone covers it


def test_rows_are_clipped_together_each_in_its_own_unit() -> None:
    change = torch.tensor([[3.0, 0.0], [0.0, 0.4]])
    (found,) = clip_jointly([change], (1.0, 0.1, 1.0))
    # units (3, 0) and (0, 4): a norm of 5
    assert torch.allclose(found, torch.tensor([[0.6, 0.0], [0.0, 0.8]], dtype=torch.float64))
    small = torch.full((2, 2), 0.01)
    (kept,) = clip_jointly([small], (1.0, 0.1, 1.0))
    assert torch.allclose(kept, torch.tensor([[0.01, 0.01], [0.1, 0.1]], dtype=torch.float64))


def test_several_tensors_of_one_client_are_one_release() -> None:
    one, other = clip_jointly([torch.full((1, 8), 5.0), torch.full((1, 8), 5.0)], (1.0, 1.0, 1.0))
    assert float(one.square().sum() + other.square().sum()) == pytest.approx(1.0)


def test_a_row_without_a_scale_stays_where_it_is() -> None:
    (found,) = clip_jointly([torch.tensor([[0.5], [9.0]])], (1.0, 0.0, 0.0))
    assert found.tolist() == [[0.5], [0.0]]


def test_the_systems_normal_draws() -> None:
    draws = system_normal(200_001)
    assert len(draws) == 200_001
    assert abs(draws.mean()) < 6 / math.sqrt(len(draws))
    assert draws.std() == pytest.approx(1.0, abs=0.01)
    share = (np.abs(draws) > 1.959964).mean()
    assert share == pytest.approx(0.05, abs=0.004)
    assert not np.array_equal(draws[:100], system_normal(100))
