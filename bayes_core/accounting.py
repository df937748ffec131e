"""What many noised releases come to together: ε of a ledger.

A release here is a sum of vectors of norm at most 1, one for each example, with Gaussian noise of standard deviation z.
Either an example takes part for certain (rate 1), or it is in the sum with probability q, drawn anew and in secret for
each sum (Poisson sampling), which hides it further. Releases of the first kind alone are one Gaussian mechanism, and ε
is exact (privacy.py). With others among them it comes from privacy-loss distributions where the package dp-accounting
is there, and is otherwise bounded by Rényi divergences of whole orders (Mironov, Talwar, Zhang 2019): a tenth higher.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

from bayes_core.privacy import epsilon_of

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512)


class Release(NamedTuple):
    """So many sums of one kind."""

    noise: float  # z
    rate: float  # q; 1: every example takes part in every one of them
    times: int


def merged(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Those of one kind counted together, in a fixed order."""
    times: dict[tuple[float, float], int] = {}
    for one in releases:
        times[one.noise, one.rate] = times.get((one.noise, one.rate), 0) + one.times
    return tuple(Release(*kind, count) for kind, count in sorted(times.items()) if count)


def epsilon_spent(releases: Iterable[Release], delta: float) -> float:
    """The ε with which all of them together are (ε, δ)-private, under taking one example out."""
    return _epsilon(merged(releases), delta)


@lru_cache(maxsize=256)
def _epsilon(releases: tuple[Release, ...], delta: float) -> float:
    if all(one.rate == 1 for one in releases):
        return epsilon_of(math.sqrt(sum(one.times / one.noise**2 for one in releases)), delta)
    if find_spec("dp_accounting"):
        return epsilon_by_losses(releases, delta)
    return epsilon_by_orders(releases, delta)


def epsilon_by_losses(releases: Iterable[Release], delta: float) -> float:
    """From the composed distribution of the privacy loss, by dp-accounting (the extra `privacy`)."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    for one in releases:
        noised = GaussianDpEvent(one.noise)
        accountant.compose(noised if one.rate == 1 else PoissonSampledDpEvent(one.rate, noised), one.times)
    return float(accountant.get_epsilon(delta))


def epsilon_by_orders(releases: Iterable[Release], delta: float) -> float:
    """min over α of Σ RDP(α) + log(1 − 1/α) − (log δ + log α)/(α − 1), the sharpest known conversion."""
    releases = tuple(releases)
    bounds: list[float] = [
        sum(one.times * renyi(one.noise, one.rate, order) for one in releases)
        + math.log1p(-1 / order)
        - (math.log(delta) + math.log(order)) / (order - 1)
        for order in ORDERS
    ]
    return max(0.0, min(bounds))


@lru_cache(maxsize=4096)
def renyi(noise: float, rate: float, order: int) -> float:
    """The Rényi divergence of this order between one sum with an example and without it.

    log Σ_k C(α, k)·(1 − q)^(α − k)·q^k·e^(k(k − 1)/2z²) / (α − 1), in logarithms.
    """
    if rate == 1:
        return order / (2 * noise**2)
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-rate)
        + k * math.log(rate)
        + k * (k - 1) / (2 * noise**2)
        for k in range(order + 1)
    ]
    highest = max(terms)
    return (highest + math.log(sum(math.exp(term - highest) for term in terms))) / (order - 1)
