"""A privacy budget as people write it: ε, or ε@δ."""

import math
from typing import NamedTuple

DELTA = 1e-5  # where nobody says another


class Budget(NamedTuple):
    """No more than (ε, δ)."""

    epsilon: float
    delta: float = DELTA

    @classmethod
    def read(cls, words: str) -> "Budget":
        """`8` or `8@1e-6`; ValueError for anything else."""
        epsilon, at, delta = words.partition("@")
        found = cls(float(epsilon), float(delta) if at else DELTA)
        if not (0 < found.epsilon < math.inf and 0 < found.delta < 1):
            raise ValueError(f"a privacy budget takes ε above 0 and δ between 0 and 1, not {words!r}")
        return found
