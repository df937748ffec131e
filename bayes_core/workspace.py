"""The gradients of one client round, in place: the formulas of families.py without their temporaries.

A step on q and w reads and writes a few vectors of T numbers some twenty times; that traffic, not arithmetic, is what
it costs. So σ and sigmoid(ρ) are computed once for each move of q or w, both halves of a mirrored pair are combined
before anything is multiplied, and every result goes into memory that was allocated once. The tests hold each gradient
against the plain formula in families.py.
"""

import torch
from torch import Tensor

from bayes_core.families import Gaussian, SpikeSlab


class GaussianWorkspace:
    """q and w of one client, which optimisers move in place; tell it with `q_moved` and `w_moved`."""

    def __init__(self, q: Tensor, w: Tensor, zeta: float) -> None:
        self.q, self.w, self.zeta = q, w, zeta
        self.gradient = torch.empty_like(q)  # of q, then of w
        self.g = torch.empty_like(q[0])
        self.thetas = torch.empty_like(q[:2])
        self.sigma_q, self.sigma_w = torch.empty_like(q[0]), torch.empty_like(q[0])
        self.pull = torch.empty_like(q[0])  # ζ/σ_w²
        self.scratch = torch.empty_like(q[:2])
        self.q_moved()
        self.w_moved()

    def q_moved(self) -> None:
        torch.ops.aten.softplus.out(self.q[1], out=self.sigma_q)

    def w_moved(self) -> None:
        torch.ops.aten.softplus.out(self.w[1], out=self.sigma_w)
        torch.mul(self.sigma_w, self.sigma_w, out=self.pull).reciprocal_().mul_(self.zeta)

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> Tensor:
        """Two mirrored draws of θ, shape (2, T)."""
        self.g.normal_(generator=generator)
        noise = torch.mul(self.sigma_q, self.g, out=self.scratch[0])
        torch.add(self.q[0], noise, out=self.thetas[0])
        torch.sub(self.q[0], noise, out=self.thetas[1])
        return self.thetas

    def clear(self) -> None:
        """Before the first `add` of a step on q."""
        self.gradient.zero_()

    def add(self, at_theta: Tensor, at_mirror: Tensor) -> None:
        """One sample's gradients of −log p at its two draws; they may be overwritten."""
        self.gradient[0].add_(at_theta).add_(at_mirror)
        self.gradient[1].addcmul_(at_theta.sub_(at_mirror), self.g)

    def q_gradient(self) -> Tensor:
        """∂Ω/∂q of all that was added."""
        slope, scratch = self.scratch
        self._add_prior(self.gradient[0], self.gradient[1], slope, scratch)
        self.gradient[1].mul_(torch.sigmoid(self.q[1], out=slope))
        return self.gradient

    def _add_prior(self, by_mu: Tensor, by_sigma: Tensor, one: Tensor, other: Tensor) -> None:
        by_mu.addcmul_(torch.sub(self.q[0], self.w[0], out=one), self.pull)
        torch.sub(self.sigma_q, self.sigma_w, out=one)
        one.mul_(torch.add(self.sigma_q, self.sigma_w, out=other)).div_(self.sigma_q)
        by_sigma.addcmul_(one, self.pull)

    def w_gradient(self) -> Tensor:
        """∂Ω_w/∂w."""
        by_mu, by_rho = self.gradient[0], self.gradient[1]
        one, other = self.scratch
        torch.sub(self.w[0], self.q[0], out=by_mu)
        torch.sub(self.sigma_w, self.sigma_q, out=by_rho)
        by_rho.mul_(torch.add(self.sigma_w, self.sigma_q, out=one)).addcmul_(by_mu, by_mu, value=-1)
        torch.mul(self.sigma_w, self.sigma_w, out=one).reciprocal_()
        by_mu.mul_(one)
        by_rho.mul_(one).div_(self.sigma_w).mul_(torch.sigmoid(self.w[1], out=other))
        return self.gradient


class SpikeSlabWorkspace(GaussianWorkspace):
    """The same with gates; q and w are in `free` coordinates, λ as its logit."""

    def __init__(self, q: Tensor, w: Tensor, zeta: float, temperature: float) -> None:
        self.temperature = temperature
        self.on = torch.empty_like(q[0])  # λ_q
        self.gammas, self.slopes = torch.empty_like(q[:2]), torch.empty_like(q[:2])
        self.slabs = torch.empty_like(q[:2])
        super().__init__(q, w, zeta)

    def q_moved(self) -> None:
        super().q_moved()
        torch.sigmoid(self.q[2], out=self.on)

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> Tensor:
        self.slabs.copy_(super().draw(generator, gates))
        logit_u = self.scratch[0].uniform_(1e-7, 1 - 1e-7, generator=gates or generator).logit_()
        torch.add(self.q[2], logit_u, out=self.gammas[0])
        torch.sub(self.q[2], logit_u, out=self.gammas[1])
        torch.div(self.gammas, self.temperature, out=self.slopes).sigmoid_()
        self.slopes.addcmul_(self.slopes, self.slopes, value=-1).div_(self.temperature)
        torch.gt(self.gammas, 0, out=self.gammas)
        return torch.mul(self.slabs, self.gammas, out=self.thetas)

    def add(self, at_theta: Tensor, at_mirror: Tensor) -> None:
        self.gradient[2].addcmul_(at_theta.mul(self.slabs[0]), self.slopes[0])
        self.gradient[2].addcmul_(at_mirror.mul(self.slabs[1]), self.slopes[1])
        super().add(at_theta.mul_(self.gammas[0]), at_mirror.mul_(self.gammas[1]))

    def q_gradient(self) -> Tensor:
        slab = Gaussian().kl_each(self.q[:2], self.w[:2]).add_(self.q[2]).sub_(self.w[2])
        slab.mul_(self.on).mul_(torch.sigmoid(-self.q[2]))
        self.gradient[2].add_(slab, alpha=self.zeta)
        return super().q_gradient()

    def _add_prior(self, by_mu: Tensor, by_sigma: Tensor, one: Tensor, other: Tensor) -> None:
        mu, sigma = torch.zeros_like(by_mu), torch.zeros_like(by_mu)
        super()._add_prior(mu, sigma, one, other)
        by_mu.addcmul_(mu, self.on)
        by_sigma.addcmul_(sigma, self.on)

    def w_gradient(self) -> Tensor:
        super().w_gradient()[:2].mul_(self.on)
        torch.sigmoid(self.w[2], out=self.gradient[2]).sub_(self.on)
        return self.gradient


def workspace(family: Gaussian | SpikeSlab, q: Tensor, w: Tensor, zeta: float) -> GaussianWorkspace:
    """For q and w in `free` coordinates. Where gates are off, λ's row has no gradient and never moves."""
    if isinstance(family, SpikeSlab) and family.gated:
        return SpikeSlabWorkspace(q, w, zeta, family.temperature)
    return GaussianWorkspace(q, w, zeta)
