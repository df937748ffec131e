"""Distributions over a network's T weights, each one contiguous tensor of shape (rows, T).

Paper: "Federated Learning via Variational Bayesian Inference: Personalization, Sparsity and Clustering"
(Zhang, Li, Shao, Liu, Zhou, Li), equations of pFedBayes. Different from the paper: σ = softplus(ρ)
everywhere (its clustered section writes log(1+ρ), a slip).

No gradient here goes through autograd: with G = ∂(−log p)/∂θ of the plain network at a sampled θ, every
row's gradient is a closed form. The tests check each against torch.distributions and autograd.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

MU_LIMIT = 1e4


class Noise(NamedTuple):
    """What a draw is made of: g ~ N(0, 1), and for gates logit u with u ~ U(0, 1)."""

    g: Tensor
    logit_u: Tensor | None = None

    def mirrored(self) -> "Noise":
        """The opposite noise: just as likely, and what the one adds to first order the other takes away."""
        return Noise(-self.g, None if self.logit_u is None else -self.logit_u)

    @staticmethod
    def stack(noises: Sequence["Noise"]) -> "Noise":
        """For several draws at once, one a row."""
        logits = [noise.logit_u for noise in noises if noise.logit_u is not None]
        return Noise(torch.stack([noise.g for noise in noises]), torch.stack(logits) if logits else None)


class Draw(NamedTuple):
    """One sampled weight vector, with what its gradient needs of the noise that made it."""

    theta: Tensor
    g: Tensor
    gamma: Tensor | None = None  # spike-and-slab: which weights are on (0 or 1) …
    slope: Tensor | None = None  # … and the straight-through derivative of that by logit λ


class Family(ABC):
    """What an algorithm may ask of a distribution over weights."""

    name: ClassVar[str]
    rows: ClassVar[tuple[str, ...]]  # names of the rows, on the wire and in files

    @abstractmethod
    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        """Noise for one draw. Gates, where a family has them, have a random stream of their own."""

    @abstractmethod
    def reparameterise(self, v: Tensor, noise: Noise) -> Draw:
        """The draw θ that this noise makes of `v`."""

    def sample(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Draw:
        """θ ~ v."""
        return self.reparameterise(v, self.noise(v, generator, gates))

    @abstractmethod
    def centre(self, v: Tensor) -> Tensor:
        """The weights of the posterior-mean network, shape (T,)."""

    def unconstrain(self, v: Tensor) -> Tensor:
        """The coordinates in which `v` is optimised and stored at a client: any value is allowed in them."""
        return v

    def constrain(self, v: Tensor) -> Tensor:
        """Back from `unconstrain`: the form that is sent, averaged and compared."""
        return v

    def after_extrapolation(self, v: Tensor) -> Tensor:
        """`v`, put back where the server's step may have left the family."""
        return v

    def nonzero(self, v: Tensor) -> float | None:
        """The share of weights that are on; None for a family in which all are."""
        return None

    def problem(self, v: Tensor) -> str | None:
        """Why `v` cannot be a distribution of this family, or None: what a server asks of an upload."""
        if v.ndim != 2 or v.shape[0] != len(self.rows):
            return f"shape {tuple(v.shape)} instead of ({len(self.rows)}, T)"
        if not is_finite(v):
            return "values that are not finite"
        if not within(v[0], MU_LIMIT):
            return f"a weight beyond ±{MU_LIMIT:g}"
        return None


def wide(v: Tensor) -> Tensor:
    """`v` in float64, which a Mac's GPU does not have."""
    return (v.cpu() if v.device.type == "mps" else v).double()


def is_finite(v: Tensor) -> bool:
    """No NaN and no infinity, in one pass without a mask."""
    return v.numel() == 0 or all(bool(end.isfinite()) for end in v.aminmax())


def within(row: Tensor, limit: float) -> bool:
    low, high = row.aminmax()
    return bool(low > -limit) and bool(high < limit)
