"""The gradients of one client round, in place: the formulas of families.py without their temporaries.

A step on q and w reads and writes a few vectors of T numbers some forty times; that traffic, as much as arithmetic, is
what it costs. So σ and what else depends on q or w alone is computed once for each move, both halves of a mirrored
pair are combined before anything is multiplied, and every result goes into memory that was allocated once. The tests
hold each gradient against the plain formula in families.py.
"""

import torch
from torch import Tensor

from bayes_core.families import Family


class GaussianWorkspace:
    """q and w of one client, which optimisers move in place; tell it with `q_moved` and `w_moved`."""

    precision_w: Tensor

    def __init__(self, q: Tensor, w: Tensor, zeta: float) -> None:
        self.zeta = zeta
        self.thetas = torch.empty_like(q[:2])  # two mirrored draws
        self.gradient = torch.zeros_like(q)  # of q, then of w; where gates are off, λ's row stays 0
        self.empty = True  # nothing was added to it yet
        # rows by name, since indexing a tensor takes as long as a small sum
        (self.mu_q, self.rho_q), (self.mu_w, self.rho_w) = q[:2], w[:2]
        self.by_slab = self.gradient[:2]
        self.by_mu, self.by_rho = self.by_slab
        self.theta, self.mirror = self.thetas
        rows = torch.empty(10, *q[0].shape, device=q.device)
        self.sigma_q, self.square_q, self.slope_q, self.g = rows[:4]  # g is the noise of the draws
        self.sigma_w, self.square_w, self.slope_w, self.precision_w = rows[4:8]
        self.one, self.other = rows[8:]  # scratch
        self.q_moved()
        self.w_moved()

    def q_moved(self) -> None:
        self._sigma(self.rho_q, self.sigma_q, self.square_q, self.slope_q)

    def w_moved(self) -> None:
        self._sigma(self.rho_w, self.sigma_w, self.square_w, self.slope_w)
        torch.reciprocal(self.square_w, out=self.precision_w)

    def _sigma(self, rho: Tensor, sigma: Tensor, square: Tensor, slope: Tensor) -> None:
        """σ, σ² and sigmoid(ρ) from one exponential, in half the time of PyTorch's softplus and sigmoid."""
        exponential = torch.exp(rho, out=self.one)
        torch.log1p(exponential, out=sigma)
        torch.mul(sigma, sigma, out=square)
        torch.div(exponential, torch.add(exponential, 1, out=slope), out=slope)

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> Tensor:
        """Two mirrored draws of θ, shape (2, T)."""
        self._draw_slabs(generator, self.theta, self.mirror)
        return self.thetas

    def _draw_slabs(self, generator: torch.Generator, plus: Tensor, minus: Tensor) -> None:
        self.g.normal_(generator=generator)
        torch.addcmul(self.mu_q, self.sigma_q, self.g, out=plus)
        torch.addcmul(self.mu_q, self.sigma_q, self.g, value=-1, out=minus)

    def clear(self) -> None:
        """Before the first `add` of a step on q."""
        self.empty = True

    def add(self, at_theta: Tensor, at_mirror: Tensor) -> None:
        """One sample's gradients of −log p at its two draws; they may be overwritten."""
        if self.empty:
            torch.add(at_theta, at_mirror, out=self.by_mu)
            torch.mul(at_theta.sub_(at_mirror), self.g, out=self.by_rho)
        else:
            self.by_mu.add_(at_theta).add_(at_mirror)
            self.by_rho.addcmul_(at_theta.sub_(at_mirror), self.g)
        self.empty = False

    def q_gradient(self) -> Tensor:
        """∂Ω/∂q of all that was added."""
        if self.empty:
            self.gradient.zero_()
        self._add_prior()
        self.by_rho.mul_(self.slope_q)
        return self.gradient

    def _add_prior(self) -> None:
        """ζ·KL by μ and by σ. At q = w it is exactly 0, or Adam would make full steps of a rounding error."""
        distance = torch.sub(self.mu_q, self.mu_w, out=self.one)
        self.by_mu.addcmul_(distance, self.precision_w, value=self.zeta)
        excess = torch.sub(self.square_q, self.square_w, out=self.one).div_(self.sigma_q)
        self.by_rho.addcmul_(excess, self.precision_w, value=self.zeta)

    def w_gradient(self) -> Tensor:
        """∂Ω_w/∂w."""
        distance = torch.sub(self.mu_w, self.mu_q, out=self.by_mu)
        torch.sub(self.square_w, self.square_q, out=self.by_rho).addcmul_(distance, distance, value=-1)
        self.by_slab.mul_(self._weight_w())
        self.by_rho.div_(self.sigma_w).mul_(self.slope_w)
        return self.gradient

    def _weight_w(self) -> Tensor:
        """What a unit of (squared) distance from q costs w."""
        return self.precision_w


class SpikeSlabWorkspace(GaussianWorkspace):
    """The same with gates; q and w are in unconstrained coordinates, λ as its logit."""

    def __init__(self, q: Tensor, w: Tensor, zeta: float, temperature: float) -> None:
        self.temperature = temperature
        self.logit_q, self.logit_w = q[2], w[2]
        self.on, self.on_off = torch.empty_like(q[:2])  # λ_q and λ_q(1−λ_q)
        self.slabs, self.etas = torch.empty(2, *q[:2].shape, device=q.device)  # of both draws
        super().__init__(q, w, zeta)
        self.by_logit = self.gradient[2]
        (self.slab, self.slab_mirror), (self.eta, self.eta_mirror) = self.slabs, self.etas

    def q_moved(self) -> None:
        super().q_moved()
        torch.sigmoid(self.logit_q, out=self.on)
        torch.neg(self.logit_q, out=self.on_off).sigmoid_().mul_(self.on)

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> Tensor:
        self._draw_slabs(generator, self.slab, self.slab_mirror)
        logit_u = self.one.uniform_(1e-7, 1 - 1e-7, generator=gates or generator).logit_()
        torch.add(self.logit_q, logit_u, out=self.eta)
        torch.sub(self.logit_q, logit_u, out=self.eta_mirror)
        return _where_on(self.slabs, self.etas, self.thetas)

    def add(self, at_theta: Tensor, at_mirror: Tensor) -> None:
        # of γ̃ and 1−γ̃ the one that keeps its digits; the network is done with its draws
        soft = torch.abs(self.etas, out=self.thetas).mul_(-1 / self.temperature).sigmoid_()
        torch.ops.aten.sigmoid_backward.grad_input(self.slabs, soft, grad_input=soft)
        if self.empty:
            torch.mul(at_theta, self.theta, out=self.by_logit)
            self.by_logit.addcmul_(at_mirror, self.mirror).mul_(1 / self.temperature)
        else:
            self.by_logit.addcmul_(at_theta, self.theta, value=1 / self.temperature)
            self.by_logit.addcmul_(at_mirror, self.mirror, value=1 / self.temperature)
        super().add(_where_on(at_theta, self.eta, at_theta), _where_on(at_mirror, self.eta_mirror, at_mirror))

    def _add_prior(self) -> None:
        scratch, ratio = self.slabs  # nothing more is added to this step
        weight = self._weight_w()
        distance = torch.sub(self.mu_q, self.mu_w, out=self.other)
        self.by_mu.addcmul_(distance, weight, value=self.zeta)
        excess = torch.sub(self.square_q, self.square_w, out=scratch)
        self.by_rho.addcmul_(torch.div(excess, self.sigma_q, out=ratio), weight, value=self.zeta)
        excess.addcmul_(distance, distance)
        gate = torch.sub(self.logit_q, self.logit_w, out=self.one)
        gate.sub_(torch.div(self.sigma_q, self.sigma_w, out=ratio).log_())
        gate.addcmul_(excess, self.precision_w, value=0.5)  # with KL(N_q ‖ N_w) now
        self.by_logit.addcmul_(gate, self.on_off, value=self.zeta)

    def w_gradient(self) -> Tensor:
        super().w_gradient()
        torch.sigmoid(self.logit_w, out=self.by_logit).sub_(self.on)
        return self.gradient

    def _weight_w(self) -> Tensor:
        return torch.mul(self.precision_w, self.on, out=self.one)


def _where_on(values: Tensor, eta: Tensor, out: Tensor) -> Tensor:
    """`values` where η > 0, elsewhere 0, in one pass."""
    found: Tensor = torch.ops.aten.threshold_backward.grad_input(values, eta, 0, grad_input=out)
    return found


def workspace(family: Family, q: Tensor, w: Tensor, zeta: float) -> GaussianWorkspace:
    """For q and w in unconstrained coordinates. Where gates are off, λ's row has no gradient and never moves."""
    if family.gated:
        return SpikeSlabWorkspace(q, w, zeta, family.temperature)
    return GaussianWorkspace(q, w, zeta)
