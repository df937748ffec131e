"""Distributions over a network's weights: what is common to all of them, and each in a file of its own."""

from bayes_core.families.base import Draw, Family, Noise, is_finite, wide, within
from bayes_core.families.gaussian import Gaussian
from bayes_core.families.point import Point
from bayes_core.families.spike_slab import SpikeSlab, bernoulli_kl

__all__ = [
    "Draw",
    "Family",
    "Gaussian",
    "Noise",
    "Point",
    "SpikeSlab",
    "bernoulli_kl",
    "build_family",
    "is_finite",
    "wide",
    "within",
]


def build_family(name: str, temperature: float, lambda_init: float) -> Gaussian | SpikeSlab:
    """The family of this name; with λ_init = 1 a spike-and-slab's gate is off."""
    return Gaussian() if name == "gaussian" else SpikeSlab(temperature, gated=lambda_init < 1)
