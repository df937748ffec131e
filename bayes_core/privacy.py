"""Client-level differential privacy: clip, noise, and the ε that they come to.

t sums of changes clipped to norm 1, each with Gaussian noise of standard deviation z, are together one Gaussian
mechanism with m = √t / z (noise levels z_1 … z_t: m² = Σ 1/z_i²). It is (ε, δ)-private, under taking one client out of
the sums (its change becomes 0), exactly where δ = Φ(m/2 − ε/m) − e^ε·Φ(−m/2 − ε/m) (Balle and Wang 2018). No
amplification by sampling.
"""

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Normal = Callable[[int], np.ndarray]  # so many independent draws from N(0, 1)


def delta_of(epsilon: float, m: float) -> float:
    """The smallest δ with which a Gaussian mechanism of sensitivity/noise = m is (ε, δ)-private."""
    if m <= 0:
        return 0.0
    log_first, log_second = _log_phi(m / 2 - epsilon / m), epsilon + _log_phi(-m / 2 - epsilon / m)
    # e^a − e^b without overflow
    return math.exp(log_first) * -math.expm1(min(log_second - log_first, 0.0))


def epsilon_of(m: float, delta: float) -> float:
    """The smallest ε with which it is (ε, δ)-private; inf where there is no noise at all."""
    if m <= 0 or delta_of(0.0, m) <= delta:
        return 0.0
    if not math.isfinite(m):
        return math.inf
    low, high = 0.0, 1.0
    while delta_of(high, m) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, m) > delta else (low, middle)
    return high


def clip_jointly(changes: Sequence[Tensor], scales: Sequence[float]) -> list[Tensor]:
    """The changes (rows, T) of one client, each row in units of its scale, with a joint norm of at most 1.

    Args:
        changes: of every distribution that the client moved; together they are one release.
        scales: of the rows; a row of scale 0 stays where it is.

    Returns:
        float64 tensors of the same shapes, in units of the scales, on the CPU.
    """
    units = []
    for change in changes:
        scale = torch.tensor(scales[: len(change)], dtype=torch.float64)
        inverse = torch.where(scale > 0, 1 / scale, 0.0)
        units.append(change.cpu().double() * inverse[:, None])
    norm = math.sqrt(sum(float(unit.square().sum()) for unit in units))
    return [unit / max(norm, 1.0) for unit in units]


def system_normal(count: int) -> np.ndarray:
    """Draws from N(0, 1) by Box and Muller, out of the operating system's randomness.

    A seeded generator would do for statistics and not here: who knows or guesses its seed can take the noise off again.
    """
    return normal_from(os.urandom, count)


def normal_from(source: Callable[[int], bytes], count: int) -> np.ndarray:
    """The same out of another source of so many random bytes."""
    half = (count + 1) // 2
    bits = np.frombuffer(source(16 * half), np.uint64)
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # within (0, 1)
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def _log_phi(x: float) -> float:
    """log Φ(x), also where Φ underflows."""
    if x > -30:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) - 1 / (x * x)
