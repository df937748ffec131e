"""ε of a ledger, against dp-accounting's figures and by other ways."""

import math

import numpy as np
import pytest

from bayes_core.accounting import Release, epsilon_by_losses, epsilon_by_orders, epsilon_spent, merged
from bayes_core.privacy import epsilon_of

# dp-accounting 0.6.0 at δ = 1e-5: z, q, sums, ε by privacy-loss distributions and by its own Rényi accountant. Made in
# an environment of its own (it takes attrs below 24): `get_epsilon(1e-5)` of PLDAccountant and RdpAccountant after
# `compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), sums)`, or `compose(GaussianDpEvent(z), sums)` for q = 1, where
# PLDs in steps of 1e-5 give the same six digits as in the usual ones of 1e-4.
SAMPLED = [
    (1.0, 0.1, 200, 9.971275, 11.063104),
    (2.0, 0.2, 100, 5.023180, 5.498764),
    (0.8, 0.05, 1000, 17.580740, 19.304227),
]
WHOLE = [
    (1.0, 1.0, 1, 4.377178, 4.728507),
    (2.0, 1.0, 10, 7.511276, 8.079406),
    (5.0, 1.0, 100, 9.997256, 10.725510),
    (13.9, 1.0, 100, 3.001454, 3.251611),
    (6.0, 1.0, 100, 8.003691, 8.603287),
    (17.0, 1.0, 800, 7.986947, 8.585505),
    (3.3, 1.0, 30, 7.963666, 8.560816),
]
REFERENCE = SAMPLED + WHOLE


@pytest.mark.parametrize(("noise", "rate", "times", "exact", "renyi"), REFERENCE)
def test_the_bound_by_orders_is_that_of_dp_accounting(
    noise: float, rate: float, times: int, exact: float, renyi: float
) -> None:
    """Whole orders alone cost less than 2 % of it; it is never below the exact figure."""
    found = epsilon_by_orders([Release(noise, rate, times)], 1e-5)
    assert exact < found
    assert renyi - 1e-4 <= found <= 1.02 * renyi


@pytest.mark.parametrize(("noise", "rate", "times", "exact", "renyi"), REFERENCE)
def test_exact_figures_with_the_package(
    noise: float, rate: float, times: int, exact: float, renyi: float
) -> None:
    pytest.importorskip("dp_accounting")
    assert epsilon_by_losses([Release(noise, rate, times)], 1e-5) == pytest.approx(exact, abs=1e-3)


@pytest.mark.parametrize(("noise", "rate", "times", "exact", "renyi"), WHOLE)
def test_the_closed_form_is_what_privacy_loss_distributions_give(
    noise: float, rate: float, times: int, exact: float, renyi: float
) -> None:
    assert epsilon_of(math.sqrt(times) / noise, 1e-5) == pytest.approx(exact, abs=1e-4)
    assert epsilon_spent([Release(noise, rate, times)], 1e-5) == pytest.approx(exact, abs=1e-4)


@pytest.mark.parametrize(("noise", "times"), [(5.0, 100), (2.0, 10), (13.9, 100)])
def test_without_sampling_it_is_the_closed_form(noise: float, times: int) -> None:
    kinds = [Release(noise, 1.0, times - 3), Release(noise, 1.0, 3)]
    assert epsilon_spent(kinds, 1e-5) == epsilon_of(math.sqrt(times) / noise, 1e-5)


def test_different_noises_add_up() -> None:
    # 1/4 + 4/16 = 1/2: as two of z = 2
    both = epsilon_spent([Release(2.0, 1.0, 1), Release(4.0, 1.0, 4)], 1e-5)
    assert both == pytest.approx(epsilon_of(math.sqrt(0.5), 1e-5))


def test_a_sampled_sum_by_the_likelihood_ratio_of_two_worlds() -> None:
    """δ(ε) of one sum, simulated: N(0, z²) without the example, (1−q)·N(0, z²) + q·N(1, z²) with it."""
    noise, rate, epsilon = 0.8, 0.3, 1.0
    random = np.random.default_rng(1)
    with_it = (random.random(2_000_000) < rate) + noise * random.standard_normal(2_000_000)
    ratio = np.log(1 - rate + rate * np.exp((2 * with_it - 1) / (2 * noise**2)))
    loss = np.clip(1 - np.exp(epsilon - ratio), 0, None)
    delta = loss.mean() + 5 * loss.std() / math.sqrt(len(loss))
    assert epsilon_by_orders([Release(noise, rate, 1)], delta) > epsilon  # an upper bound …
    assert epsilon_by_orders([Release(noise, rate, 1)], delta) < 2 * epsilon  # … of some use


def test_sampling_hides_and_more_steps_tell_more() -> None:
    by_rate = [epsilon_by_orders([Release(1.0, rate, 50)], 1e-5) for rate in (0.01, 0.1, 0.5, 1.0)]
    assert by_rate == sorted(by_rate)
    by_times = [epsilon_by_orders([Release(1.0, 0.1, times)], 1e-5) for times in (1, 10, 100, 1000)]
    assert by_times == sorted(by_times)


def test_kinds_are_counted_together() -> None:
    found = merged([Release(2.0, 1.0, 3), Release(1.0, 0.1, 5), Release(2.0, 1.0, 4), Release(3.0, 1.0, 0)])
    assert found == (Release(1.0, 0.1, 5), Release(2.0, 1.0, 7))
    assert epsilon_spent([], 1e-5) == 0
