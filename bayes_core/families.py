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
from torch.nn.functional import softplus

LAMBDA_MARGIN = 1e-6  # λ stays this far from 0 and 1
MU_LIMIT = 1e4
RHO_LIMIT = 25.0  # σ between 1e-11 and 25: beyond, float32 gradients overflow


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
    def place(self, v: Tensor, noise: Noise) -> Draw:
        """The draw θ that this noise makes of `v`."""

    def sample(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Draw:
        """θ ~ v."""
        return self.place(v, self.noise(v, generator, gates))

    @abstractmethod
    def centre(self, v: Tensor) -> Tensor:
        """The weights of the posterior-mean network, shape (T,)."""

    def free(self, v: Tensor) -> Tensor:
        """The coordinates in which `v` is optimised and stored at a client: any value is allowed in them."""
        return v

    def bound(self, v: Tensor) -> Tensor:
        """Back from `free`: the form that is sent, averaged and compared."""
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


class Point(Family):
    """One weight vector and no uncertainty: what FedAvg sends."""

    name = "point"
    rows = ("theta",)

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        return Noise(torch.zeros(0))

    def place(self, v: Tensor, noise: Noise) -> Draw:
        return Draw(v[0], noise.g)

    def centre(self, v: Tensor) -> Tensor:
        return v[0]


class Gaussian(Family):
    """Mean-field Gaussian v = (μ, ρ): θ = μ + σ·g with σ = softplus(ρ) and g ~ N(0, 1)."""

    name = "gaussian"
    rows = ("mu", "rho")

    def problem(self, v: Tensor) -> str | None:
        if problem := super().problem(v):
            return problem
        if not within(v[1], RHO_LIMIT):
            return f"a ρ beyond ±{RHO_LIMIT:g}"
        return None

    def init(self, mu: Tensor, rho_init: float = -2.5, lambda_init: float = 1.0) -> Tensor:
        """The start: an ordinary network's weights, all equally uncertain (and λ = 1, always)."""
        return torch.stack([mu, torch.full_like(mu, rho_init)])

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        return Noise(torch.empty_like(v[0]).normal_(generator=generator))

    def place(self, v: Tensor, noise: Noise) -> Draw:
        return Draw(torch.addcmul(v[0], softplus(v[1]), noise.g), noise.g)

    def centre(self, v: Tensor) -> Tensor:
        return v[0]

    def kl(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(q ‖ w), summed over the weights; in float64, since near q = w its terms cancel."""
        return self.kl_each(wide(q), wide(w)).sum()

    def kl_each(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(q ‖ w) of every weight."""
        sigma_w = softplus(w[1])
        ratio = softplus(q[1]) / sigma_w
        terms: Tensor = 0.5 * (ratio.square() + ((q[0] - w[0]) / sigma_w).square() - 1 - 2 * ratio.log())
        return terms

    def likelihood_gradient(self, v: Tensor, draw: Draw, gradient: Tensor) -> Tensor:
        """∂(−log p)/∂(μ, ρ) from G at the drawn θ: (G, G·g·sigmoid(ρ))."""
        return torch.stack([gradient, gradient * draw.g * torch.sigmoid(v[1])])

    def kl_gradient_q(self, q: Tensor, w: Tensor) -> Tensor:
        """∂KL(q ‖ w)/∂q: ((μ_q−μ_w)/σ_w², (σ_q/σ_w² − 1/σ_q)·sigmoid(ρ_q)).

        Differences are factored, so that the gradient is exactly 0 at q = w: Adam would turn a rounding
        error into steps of full size, and q and w would chase each other.
        """
        sigma_q, sigma_w = softplus(q[1]), softplus(w[1])
        difference = (sigma_q - sigma_w) * (sigma_q + sigma_w) / (sigma_q * sigma_w.square())
        return torch.stack([(q[0] - w[0]) / sigma_w.square(), difference * torch.sigmoid(q[1])])

    def kl_gradient_w(self, q: Tensor, w: Tensor) -> Tensor:
        """∂KL(q ‖ w)/∂w: ((μ_w−μ_q)/σ_w², (1/σ_w − (σ_q²+(μ_q−μ_w)²)/σ_w³)·sigmoid(ρ_w))."""
        sigma_q, sigma_w = softplus(q[1]), softplus(w[1])
        distance = w[0] - q[0]
        excess = (sigma_w - sigma_q) * (sigma_w + sigma_q) - distance.square()
        return torch.stack([distance / sigma_w.square(), excess / sigma_w.pow(3) * torch.sigmoid(w[1])])


class SpikeSlab(Family):
    """Bernoulli–Gaussian v = (μ, ρ, λ): θ = γ·(μ + σ·g), γ ~ Bern(λ).

    λ is a probability where distributions are sent, averaged and compared (`bound`), and its logit where they
    are optimised, sampled and stored (`free`). The forward pass has a hard γ = 1[η > 0] with
    η = logit λ + logit u; backwards it counts as sigmoid(η/τ) (straight-through).

    With `gated = False` λ is 1 for good: no gate is drawn and λ is not optimised, so this is the Gaussian
    family with a third row, step for step.
    """

    name = "spike-slab"
    rows = ("mu", "rho", "lambda")

    def __init__(self, temperature: float = 0.5, gated: bool = True) -> None:
        self.temperature = temperature
        self.gated = gated
        self.slab = Gaussian()

    def init(self, mu: Tensor, rho_init: float = -2.5, lambda_init: float = 0.5) -> Tensor:
        return torch.cat([self.slab.init(mu, rho_init), torch.full_like(mu, lambda_init)[None]])

    def problem(self, v: Tensor) -> str | None:
        if problem := super().problem(v) or self.slab.problem(v[:2]):
            return problem
        low, high = v[2].aminmax()
        if low < 0 or high > 1:
            return "a λ outside 0 … 1"
        return None

    def free(self, v: Tensor) -> Tensor:
        if not self.gated:
            return v
        return torch.cat([v[:2], wide(v[2:]).clamp(LAMBDA_MARGIN, 1 - LAMBDA_MARGIN).logit().to(v)])

    def bound(self, v: Tensor) -> Tensor:
        return torch.cat([v[:2], v[2:].sigmoid()]) if self.gated else v

    def after_extrapolation(self, v: Tensor) -> Tensor:
        """β > 1 can carry λ out of (0, 1)."""
        if not self.gated:
            return v
        return torch.cat([v[:2], v[2:].clamp(LAMBDA_MARGIN, 1 - LAMBDA_MARGIN)])

    def nonzero(self, v: Tensor) -> float:
        """The non-zero ratio of a `bound` distribution: the mean of λ."""
        return float(wide(v[2]).mean())

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        g = self.slab.noise(v, generator).g
        if not self.gated:
            return Noise(g)
        u = torch.empty_like(v[2]).uniform_(1e-7, 1 - 1e-7, generator=gates or generator)
        return Noise(g, u.logit_())

    def place(self, v: Tensor, noise: Noise) -> Draw:
        """θ from `free` coordinates."""
        slab = self.slab.place(v, noise)
        if noise.logit_u is None:
            return slab
        eta = v[2] + noise.logit_u
        soft = torch.sigmoid(eta / self.temperature)
        gamma = (eta > 0).to(v.dtype)
        return Draw(gamma * slab.theta, slab.g, gamma, soft * (1 - soft) / self.temperature)

    def centre(self, v: Tensor) -> Tensor:
        """The mean of θ, λ·μ, from `free` coordinates."""
        return v[0] * v[2].sigmoid() if self.gated else v[0]

    def kl(self, q: Tensor, w: Tensor) -> Tensor:
        """Σ KL(Bern λ_q ‖ Bern λ_w) + Σ λ_q·KL(N_q ‖ N_w), of `bound` distributions; in float64."""
        return self.kl_each(wide(q), wide(w)).sum()

    def kl_each(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(q ‖ w) of every weight, of `bound` distributions."""
        terms: Tensor = bernoulli_kl(q[2], w[2]) + q[2] * self.slab.kl_each(q[:2], w[:2])
        return terms

    def likelihood_gradient(self, v: Tensor, draw: Draw, gradient: Tensor) -> Tensor:
        """(G·γ, G·γ·g·sigmoid(ρ), G·(μ+σg)·γ̃(1−γ̃)/τ) with the hard γ and the soft γ̃."""
        if draw.gamma is None or draw.slope is None:
            rows = self.slab.likelihood_gradient(v[:2], draw, gradient)
            return torch.cat([rows, torch.zeros_like(rows[:1])])
        rows = self.slab.likelihood_gradient(v[:2], draw, gradient * draw.gamma)
        return torch.cat([rows, (gradient * self._slab(v, draw) * draw.slope)[None]])

    def kl_gradient_q(self, q: Tensor, w: Tensor) -> Tensor:
        """By q in `free` coordinates: the slab's rows times λ_q, and for logit λ_q
        λ_q(1−λ_q)·[logit λ_q − logit λ_w + KL(N_q ‖ N_w)]."""
        rows = self.slab.kl_gradient_q(q[:2], w[:2])
        if not self.gated:
            return torch.cat([rows, torch.zeros_like(rows[:1])])
        on = q[2].sigmoid()
        gate = on * (-q[2]).sigmoid() * (q[2] - w[2] + self.slab.kl_each(q[:2], w[:2]))
        return torch.cat([rows * on, gate[None]])

    def kl_gradient_w(self, q: Tensor, w: Tensor) -> Tensor:
        """By w in `free` coordinates: the slab's rows times λ_q, and λ_w − λ_q for logit λ_w."""
        rows = self.slab.kl_gradient_w(q[:2], w[:2])
        if not self.gated:
            return torch.cat([rows, torch.zeros_like(rows[:1])])
        on = q[2].sigmoid()
        return torch.cat([rows * on, (w[2].sigmoid() - on)[None]])

    def _slab(self, v: Tensor, draw: Draw) -> Tensor:
        return torch.addcmul(v[0], softplus(v[1]), draw.g)


def wide(v: Tensor) -> Tensor:
    """`v` in float64, which a Mac's GPU does not have."""
    return (v.cpu() if v.device.type == "mps" else v).double()


def is_finite(v: Tensor) -> bool:
    """No NaN and no infinity, in one pass without a mask."""
    return v.numel() == 0 or all(bool(end.isfinite()) for end in v.aminmax())


def within(row: Tensor, limit: float) -> bool:
    low, high = row.aminmax()
    return bool(low > -limit) and bool(high < limit)


def bernoulli_kl(q: Tensor, w: Tensor) -> Tensor:
    """KL(Bern q ‖ Bern w), with 0·log 0 = 0."""
    return torch.xlogy(q, q) - torch.xlogy(q, w) + torch.xlogy(1 - q, 1 - q) - torch.xlogy(1 - q, 1 - w)


def build_family(name: str, temperature: float, lambda_init: float) -> Gaussian | SpikeSlab:
    """The family of this name; with λ_init = 1 a spike-and-slab's gate is off."""
    return Gaussian() if name == "gaussian" else SpikeSlab(temperature, gated=lambda_init < 1)
