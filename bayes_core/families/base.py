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
RHO_INIT = -2.5
NOTHING = torch.empty(0)


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
    """Sampled weights (T,), or (S, T) from S rows of noise, with what their gradient needs of that noise."""

    theta: Tensor
    g: Tensor
    eta: Tensor | None = None  # spike-and-slab: weights are on where it is above 0 …
    soft: Tensor | None = None  # … sigmoid(−|η|/τ), the smaller of γ̃ and 1−γ̃ …
    slab: Tensor | None = None  # … and μ + σ·g, what θ is where they are on

    @property
    def gamma(self) -> Tensor | None:
        """Which weights are on (0 or 1), where there are gates."""
        return None if self.eta is None else (self.eta > 0).to(self.theta)


class Parts(NamedTuple):
    """An unconstrained distribution with what its formulas share, each (T,) or, where a family lacks it, empty.

    softplus is most of what a step costs: an algorithm that asks several things of one distribution makes its parts
    once, and gives them in its place.
    """

    mu: Tensor
    sigma: Tensor = NOTHING  # softplus(ρ)
    slope: Tensor = NOTHING  # ∂σ/∂ρ = sigmoid(ρ)
    logit: Tensor = NOTHING  # of λ, where there are gates
    on: Tensor = NOTHING  # λ
    off: Tensor = NOTHING  # 1 − λ, with all its digits


class Factors(NamedTuple):
    """KL(v_i ‖ v_j) of all pairs of N distributions, as products: of_i · of_jᵀ + only_i[:, None] + only_j.

    What depends on i alone, and comes back with the opposite sign in KL(v_j ‖ v_i), may be left out.
    """

    of_i: Tensor  # (N, F)
    of_j: Tensor  # (N, F)
    only_i: Tensor  # (N,)
    only_j: Tensor  # (N,)


class Family(ABC):
    """What an algorithm may ask of a distribution over T weights, a tensor (rows, T).

    Two kinds of coordinates: constrained, in which distributions are sent, averaged and compared, and unconstrained,
    in which they are optimised, sampled and stored. They differ only where `constrain` says so.
    """

    name: ClassVar[str]
    rows: ClassVar[tuple[str, ...]]  # names of the rows, on the wire and in files
    uncertain: ClassVar[bool] = True  # whether two draws can differ
    gated: bool = False  # whether weights can be off
    temperature: float = 1.0  # τ of the gates' straight-through slope

    @abstractmethod
    def init(self, mu: Tensor, rho_init: float = RHO_INIT, lambda_init: float = 1.0) -> Tensor:
        """The start: an ordinary network's weights, all equally uncertain.

        Args:
            mu: the weights (T,), as `flatten` gives them.
            rho_init: ρ of all, where the family has it.
            lambda_init: λ of all, where the family has it.

        Returns:
            A constrained distribution (rows, T).
        """

    @abstractmethod
    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        """Noise for one draw. Gates, where a family has them, have a random stream of their own."""

    @abstractmethod
    def parts(self, v: Tensor | Parts) -> Parts:
        """Of an unconstrained distribution; parts are given back as they are."""

    @abstractmethod
    def reparameterise(self, v: Tensor | Parts, noise: Noise, out: Tensor | None = None) -> Draw:
        """The draw θ that this noise makes of an unconstrained `v`, one for each row of noise; in `out` if given."""

    def sample(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Draw:
        """θ ~ v, unconstrained."""
        return self.reparameterise(v, self.noise(v, generator, gates))

    @abstractmethod
    def centre(self, v: Tensor) -> Tensor:
        """The weights of the posterior-mean network of an unconstrained `v`, shape (T,)."""

    def unconstrain(self, v: Tensor) -> Tensor:
        """The coordinates in which `v` is optimised and stored at a client: any value is allowed in them."""
        return v

    def constrain(self, v: Tensor) -> Tensor:
        """Back from `unconstrain`: the form that is sent, averaged and compared."""
        return v

    def after_extrapolation(self, v: Tensor) -> Tensor:
        """A constrained `v`, put back where the server's step may have left the family."""
        return v

    def sigma(self, v: Tensor) -> Tensor:
        """The standard deviation of each weight that is on, shape (T,); 0 without uncertainty."""
        return torch.zeros_like(v[0])

    def inclusion(self, v: Tensor) -> Tensor:
        """The probability λ of each weight of a constrained `v` to be on, shape (T,)."""
        return torch.ones_like(v[0])

    def nonzero(self, v: Tensor) -> float | None:
        """The share of weights of a constrained `v` that are on; None for a family in which all are."""
        return None

    def problem(self, v: Tensor) -> str | None:
        """Why `v` cannot be a constrained distribution of this family, or None: what a server asks of an upload."""
        if v.ndim != 2 or v.shape[0] != len(self.rows):
            return f"shape {tuple(v.shape)} instead of ({len(self.rows)}, T)"
        if not is_finite(v):
            return "values that are not finite"
        if not within(v[0], MU_LIMIT):
            return f"a weight beyond ±{MU_LIMIT:g}"
        return None

    def kl(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(q ‖ w) of constrained distributions, a scalar; in float64, since near q = w its terms cancel."""
        return self.kl_each(wide(q), wide(w)).sum()

    @abstractmethod
    def kl_each(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(q ‖ w) of every weight, of constrained distributions, shape (T,)."""

    @abstractmethod
    def kl_factors(self, v: Tensor) -> Factors:
        """For constrained distributions (N, rows, T) in float64, with centred means; `v` may be overwritten."""

    @abstractmethod
    def likelihood_gradient(
        self, v: Tensor | Parts, draw: Draw, gradient: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """∂(−log p)/∂v (rows, T), unconstrained, from G = ∂(−log p)/∂θ (T,) at the drawn θ; added to `out` if given."""

    @abstractmethod
    def kl_gradient_q(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """∂KL(q ‖ w)/∂q (rows, T), unconstrained; written to `out` if given."""

    @abstractmethod
    def kl_gradient_w(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """∂KL(q ‖ w)/∂w (rows, T), unconstrained; written to `out` if given."""

    def _blank(self, row: Tensor, out: Tensor | None) -> Tensor:
        return row.new_zeros(len(self.rows), *row.shape) if out is None else out


def family_of(v: Tensor, family: Family) -> Family:
    """Of a tensor among the distributions of a family: one row alone are plain weights beside them."""
    if len(v) > 1 or not family.uncertain:
        return family
    from bayes_core.families.point import Point  # which is a Family itself

    return Point()


def wide(v: Tensor) -> Tensor:
    """`v` in float64, which a Mac's GPU does not have."""
    return (v.cpu() if v.device.type == "mps" else v).double()


def is_finite(v: Tensor) -> bool:
    """No NaN and no infinity, in one pass without a mask."""
    return v.numel() == 0 or all(bool(end.isfinite()) for end in v.aminmax())


def within(row: Tensor, limit: float) -> bool:
    low, high = row.aminmax()
    return bool(low > -limit) and bool(high < limit)
