"""Spike and slab: sFedBayes' distribution."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayes_core.families.base import RHO_INIT, Draw, Factors, Family, Noise, Parts, wide
from bayes_core.families.gaussian import Gaussian, gaps

LAMBDA_MARGIN = 1e-6  # λ stays this far from 0 and 1


class SpikeSlab(Family):
    """Bernoulli–Gaussian v = (μ, ρ, λ), a tensor (3, T): θ = γ·(μ + σ·g), γ ~ Bern(λ).

    λ is a probability in constrained coordinates, and its logit in unconstrained ones. The forward pass has a hard
    γ = 1[η > 0] with η = logit λ + logit u; backwards it counts as sigmoid(η/τ) (straight-through).

    With `gated = False` λ is 1 for good: no gate is drawn and λ is not optimised, so this is the Gaussian
    family with a third row, step for step.

    Args:
        temperature: τ, above 0.
        gated: whether weights can be off.
    """

    name = "spike-slab"
    rows = ("mu", "rho", "lambda")

    def __init__(self, temperature: float = 0.5, gated: bool = True) -> None:
        self.temperature = temperature
        self.gated = gated
        self.slab = Gaussian()

    def init(self, mu: Tensor, rho_init: float = RHO_INIT, lambda_init: float = 0.5) -> Tensor:
        if self.gated:  # 0.99999999 is 1 in float32, from which every other λ is infinitely far
            lambda_init = min(max(lambda_init, LAMBDA_MARGIN), 1 - LAMBDA_MARGIN)
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

    def sigma(self, v: Tensor) -> Tensor:
        return self.slab.sigma(v)

    def inclusion(self, v: Tensor) -> Tensor:
        return v[2]

    def nonzero(self, v: Tensor) -> float:
        """The non-zero ratio of a constrained distribution: the mean of λ."""
        return float(wide(v[2]).mean())

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        g = self.slab.noise(v, generator).g
        if not self.gated:
            return Noise(g)
        u = torch.empty_like(v[2]).uniform_(1e-7, 1 - 1e-7, generator=gates or generator)
        return Noise(g, u.logit_())

    def parts(self, v: Tensor | Parts) -> Parts:
        if isinstance(v, Parts):
            return v
        slab = self.slab.parts(v)
        if not self.gated:
            return slab
        logit = v[2]
        return slab._replace(logit=logit, on=logit.sigmoid(), off=logit.neg().sigmoid_())

    def reparameterise(self, v: Tensor | Parts, noise: Noise, out: Tensor | None = None) -> Draw:
        if noise.logit_u is None:
            return self.slab.reparameterise(v, noise, out)
        v = self.parts(v)
        slab, eta = self.slab.reparameterise(v, noise).theta, v.logit + noise.logit_u
        # Of γ̃ and 1−γ̃ the one that keeps its digits: Adam makes full steps of the smallest gradient.
        soft = eta.abs().mul_(-1 / self.temperature).sigmoid_()
        return Draw(where_on(slab, eta, out), noise.g, eta, soft, slab)

    def centre(self, v: Tensor) -> Tensor:
        """The mean of θ, λ·μ."""
        return v[0] * v[2].sigmoid() if self.gated else v[0]

    def kl_each(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(Bern λ_q ‖ Bern λ_w) + λ_q·KL(N_q ‖ N_w)."""
        terms: Tensor = bernoulli_kl(q[2], w[2]) + q[2] * self.slab.kl_each(q[:2], w[:2])
        return terms

    def kl_factors(self, v: Tensor) -> Factors:
        """Σ KL(Bern λ_i ‖ Bern λ_j) + Σ λ_i·KL(N_i ‖ N_j); (1−λ_i)·log(1−λ_j) is split into its two terms."""
        mu, sigma = v[:, 0], softplus(v[:, 1])
        on = v[:, 2].clamp_(1e-12, 1 - 1e-12)
        log_on, log_off, log_sigma = on.log(), (-on).log1p_(), sigma.log()
        variance = sigma.square_()
        precision = variance.reciprocal()
        pull = mu * precision
        only_i = torch.linalg.vecdot(on, log_on - log_off - log_sigma - 0.5) + log_off.sum(1)
        only_j = -log_off.sum(1)
        of_i = torch.cat([variance.addcmul_(mu, mu).mul_(on).mul_(0.5), mu * on, on], 1)
        slab = (mu * pull).mul_(0.5).add_(log_sigma).sub_(log_on).add_(log_off)
        return Factors(of_i, torch.cat([precision, pull.neg_(), slab], 1), only_i, only_j)

    def likelihood_gradient(
        self, v: Tensor | Parts, draw: Draw, gradient: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """(G·γ, G·γ·g·sigmoid(ρ), G·(μ+σg)·γ̃(1−γ̃)/τ) with the hard γ and the soft γ̃."""
        out = self._blank(gradient, out)
        if draw.eta is None or draw.soft is None or draw.slab is None:
            self.slab.likelihood_gradient(v, draw, gradient, out[:2])
            return out
        self.slab.likelihood_gradient(v, draw, where_on(gradient, draw.eta), out[:2])
        slope = torch.ops.aten.sigmoid_backward(gradient * draw.slab, draw.soft)  # G·(μ+σg)·γ̃(1−γ̃)
        out[2].add_(slope, alpha=1 / self.temperature)
        return out

    def kl_gradient_q(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """The slab's rows times λ_q, and λ_q(1−λ_q)·[logit λ_q − logit λ_w + KL(N_q ‖ N_w)] by logit λ_q.

        Without gates λ has no gradient, and never moves.
        """
        q, w = self.parts(q), self.parts(w)
        out = self._blank(q.mu, out)
        mu, rho, logit = out.unbind()
        if not self.gated:
            self.slab.kl_gradient_q(q, w, out[:2])
            logit.zero_()
            return out
        distance, excess, variance = gaps(q, w)
        twice_kl = torch.addcmul(excess, distance, distance).div_(variance)
        twice_kl.sub_(torch.div(q.sigma, w.sigma).log_(), alpha=2)
        torch.div(distance, variance, out=mu)
        torch.mul(excess.div_(variance.mul_(q.sigma)), q.slope, out=rho)
        torch.mul(twice_kl.mul_(0.5).add_(q.logit).sub_(w.logit), q.off, out=logit)
        return out.mul_(q.on)

    def kl_gradient_w(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """The slab's rows times λ_q, and λ_w − λ_q by logit λ_w."""
        q, w = self.parts(q), self.parts(w)
        out = self._blank(q.mu, out)
        rows = self.slab.kl_gradient_w(q, w, out[:2])
        if not self.gated:
            out[2].zero_()
            return out
        rows.mul_(q.on)
        difference_of_gates(w, q, out[2])
        return out


def where_on(v: Tensor, eta: Tensor, out: Tensor | None = None) -> Tensor:
    """v·1[η > 0], in one pass over memory."""
    into = {} if out is None else {"grad_input": out}
    on: Tensor = torch.ops.aten.threshold_backward(v, eta, 0.0, **into)
    return on


def difference_of_gates(a: Parts, b: Parts, out: Tensor | None = None) -> Tensor:
    """λ_a − λ_b, with all its digits where they are near: Adam makes full steps of the smallest gradient.

    With the higher of the two, h, and the lower, l, it is ±λ_h·(1−λ_l)·(1 − e^(logit l − logit h)).
    """
    gap = b.logit - a.logit
    size = torch.mul(a.on, b.off)
    torch.maximum(size, b.on * a.off, out=size).copysign_(gap)
    return torch.mul(size, gap.abs_().neg_().expm1_(), out=out)


def bernoulli_kl(q: Tensor, w: Tensor) -> Tensor:
    """KL(Bern q ‖ Bern w), with 0·log 0 = 0."""
    return torch.xlogy(q, q) - torch.xlogy(q, w) + torch.xlogy(1 - q, 1 - q) - torch.xlogy(1 - q, 1 - w)
