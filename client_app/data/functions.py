"""`dataset=functions`: clients whose true functions are known, for the paper's own problem statement.

Client i observes y = f_i(x) + ε, x uniform on [−1, 1], ε ~ N(0, NOISE²), with

    f_i(x) = Σ_k 2^−k · cos(2^k·π·x + φ_ik),   k = 0 … 4

five waves of halving width and height. The two widest waves are the same at all clients, which is what they can learn
from each other; the phases of the finer ones are each client's own.
"""

import numpy as np

from fedbayes.protocol.streams import seed_of

NAME = "functions"
NOISE = 0.1  # σ_ε
WAVES, SHARED = 5, 2


def truth(x: np.ndarray, client: int, seed: int) -> np.ndarray:
    """f_i at the points x."""
    common, own = (np.random.default_rng(seed_of(seed, NAME, who)) for who in ("all", client))
    phases = [(common if k < SHARED else own).uniform(0, 2 * np.pi) for k in range(WAVES)]
    values = np.zeros_like(x, dtype=np.float64)
    for k, phase in enumerate(phases):
        values += 2.0**-k * np.cos(2.0**k * np.pi * x + phase)
    return values


def observe(client: int, counts: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
    """This client's examples for training and test; those of a smaller number are the first of a larger one."""
    arrays: dict[str, np.ndarray] = {}
    for part, n in zip(("train", "test"), counts, strict=True):
        points, noise = (
            np.random.default_rng(seed_of(seed, NAME, client, part, kind)) for kind in ("x", "y")
        )
        x = points.uniform(-1, 1, n)
        arrays |= {f"x_{part}": x[:, None], f"y_{part}": truth(x, client, seed) + noise.normal(0, NOISE, n)}
    return arrays
