"""Spike and slab: sFedBayes' distribution."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayes_core.families.base import Draw, Family, Noise, wide
from bayes_core.families.gaussian import Gaussian

LAMBDA_MARGIN = 1e-6  # λ stays this far from 0 and 1


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

    def unconstrain(self, v: Tensor) -> Tensor:
        if not self.gated:
            return v
        return torch.cat([v[:2], wide(v[2:]).clamp(LAMBDA_MARGIN, 1 - LAMBDA_MARGIN).logit().to(v)])

    def constrain(self, v: Tensor) -> Tensor:
        return torch.cat([v[:2], v[2:].sigmoid()]) if self.gated else v

    def after_extrapolation(self, v: Tensor) -> Tensor:
        """β > 1 can carry λ out of (0, 1)."""
        if not self.gated:
            return v
        return torch.cat([v[:2], v[2:].clamp(LAMBDA_MARGIN, 1 - LAMBDA_MARGIN)])

    def nonzero(self, v: Tensor) -> float:
        """The non-zero ratio of a constrained distribution: the mean of λ."""
        return float(wide(v[2]).mean())

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        g = self.slab.noise(v, generator).g
        if not self.gated:
            return Noise(g)
        u = torch.empty_like(v[2]).uniform_(1e-7, 1 - 1e-7, generator=gates or generator)
        return Noise(g, u.logit_())

    def reparameterise(self, v: Tensor, noise: Noise) -> Draw:
        """θ from unconstrained coordinates."""
        slab = self.slab.reparameterise(v, noise)
        if noise.logit_u is None:
            return slab
        eta = v[2] + noise.logit_u
        soft = torch.sigmoid(eta / self.temperature)
        gamma = (eta > 0).to(v.dtype)
        return Draw(gamma * slab.theta, slab.g, gamma, soft * (1 - soft) / self.temperature)

    def centre(self, v: Tensor) -> Tensor:
        """The mean of θ, λ·μ, from unconstrained coordinates."""
        return v[0] * v[2].sigmoid() if self.gated else v[0]

    def kl(self, q: Tensor, w: Tensor) -> Tensor:
        """Σ KL(Bern λ_q ‖ Bern λ_w) + Σ λ_q·KL(N_q ‖ N_w), of constrained distributions; in float64."""
        return self.kl_each(wide(q), wide(w)).sum()

    def kl_each(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(q ‖ w) of every weight, of constrained distributions."""
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
        """By q in unconstrained coordinates: the slab's rows times λ_q, and for logit λ_q
        λ_q(1−λ_q)·[logit λ_q − logit λ_w + KL(N_q ‖ N_w)]."""
        rows = self.slab.kl_gradient_q(q[:2], w[:2])
        if not self.gated:
            return torch.cat([rows, torch.zeros_like(rows[:1])])
        on = q[2].sigmoid()
        gate = on * (-q[2]).sigmoid() * (q[2] - w[2] + self.slab.kl_each(q[:2], w[:2]))
        return torch.cat([rows * on, gate[None]])

    def kl_gradient_w(self, q: Tensor, w: Tensor) -> Tensor:
        """By w in unconstrained coordinates: the slab's rows times λ_q, and λ_w − λ_q for logit λ_w."""
        rows = self.slab.kl_gradient_w(q[:2], w[:2])
        if not self.gated:
            return torch.cat([rows, torch.zeros_like(rows[:1])])
        on = q[2].sigmoid()
        return torch.cat([rows * on, (w[2].sigmoid() - on)[None]])

    def _slab(self, v: Tensor, draw: Draw) -> Tensor:
        return torch.addcmul(v[0], softplus(v[1]), draw.g)


def bernoulli_kl(q: Tensor, w: Tensor) -> Tensor:
    """KL(Bern q ‖ Bern w), with 0·log 0 = 0."""
    return torch.xlogy(q, q) - torch.xlogy(q, w) + torch.xlogy(1 - q, 1 - q) - torch.xlogy(1 - q, 1 - w)
