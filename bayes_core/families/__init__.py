"""Distributions over a network's weights: what is common to all of them, and each in a file of its own."""

from bayes_core.families.base import Draw, Factors, Family, Noise, Parts, family_of, is_finite, wide, within
from bayes_core.families.gaussian import Gaussian
from bayes_core.families.point import Point
from bayes_core.families.spike_slab import SpikeSlab, bernoulli_kl

__all__ = [
    "Draw",
    "Factors",
    "Family",
    "Gaussian",
    "Noise",
    "Parts",
    "Point",
    "SpikeSlab",
    "bernoulli_kl",
    "build_family",
    "family_of",
    "is_finite",
    "named",
    "wide",
    "within",
]


def build_family(name: str, temperature: float, lambda_init: float) -> Family:
    """The family for a run's settings.

    Args:
        name: "point", "gaussian" or "spike-slab".
        temperature: τ of the gates' straight-through slope; of the spike-and-slab family alone.
        lambda_init: the start of λ; with 1 a spike-and-slab's gates are off for good.
    """
    return SpikeSlab(temperature, gated=lambda_init < 1) if name == SpikeSlab.name else named(name)


def named(name: str, gated: bool = True) -> Family:
    """The family in which a file's model was trained: "point", "gaussian" or "spike-slab" (with gates or without)."""
    families: dict[str, Family] = {
        family.name: family for family in (Point(), Gaussian(), SpikeSlab(gated=gated))
    }
    if name not in families:
        raise ValueError(f"There is no family {name!r}; there are {', '.join(families)}.")
    return families[name]
