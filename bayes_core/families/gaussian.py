"""The mean-field Gaussian: pFedBayes' distribution."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayes_core.families.base import RHO_INIT, Draw, Factors, Family, Noise, Parts, within

RHO_LIMIT = 25.0  # σ between 1e-11 and 25: beyond, float32 gradients overflow


class Gaussian(Family):
    """Mean-field Gaussian v = (μ, ρ), a tensor (2, T): θ = μ + σ·g with σ = softplus(ρ) and g ~ N(0, 1).

    Both kinds of coordinates are the same.
    """

    name = "gaussian"
    rows = ("mu", "rho")

    def init(self, mu: Tensor, rho_init: float = RHO_INIT, lambda_init: float = 1.0) -> Tensor:
        """λ is 1, always."""
        return torch.stack([mu, torch.full_like(mu, rho_init)])

    def problem(self, v: Tensor) -> str | None:
        if problem := super().problem(v):
            return problem
        if not within(v[1], RHO_LIMIT):
            return f"a ρ beyond ±{RHO_LIMIT:g}"
        return None

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        return Noise(torch.empty_like(v[0]).normal_(generator=generator))

    def parts(self, v: Tensor | Parts) -> Parts:
        if isinstance(v, Parts):
            return v
        mu, rho = v[:2].unbind()  # a spike and slab's λ is passed over
        return Parts(mu, softplus(rho), torch.sigmoid(rho))

    def reparameterise(self, v: Tensor | Parts, noise: Noise, out: Tensor | None = None) -> Draw:
        v = self.parts(v)
        return Draw(torch.addcmul(v.mu, v.sigma, noise.g, out=out), noise.g)

    def centre(self, v: Tensor) -> Tensor:
        return v[0]

    def sigma(self, v: Tensor) -> Tensor:
        return softplus(v[1])

    def kl_each(self, q: Tensor, w: Tensor) -> Tensor:
        return kl_of_normals(q[0], softplus(q[1]), w[0], softplus(w[1]))

    def kl_factors(self, v: Tensor) -> Factors:
        """½ Σ [(σ_i² + (μ_i−μ_j)²)·p_j − 1] with p = 1/σ²; without log σ, which cancels."""
        mu = v[:, 0]
        variance = softplus(v[:, 1]).square_()
        precision = variance.reciprocal()
        pull = mu * precision
        only_j = 0.5 * torch.linalg.vecdot(mu, pull)
        of_i = torch.cat([variance.addcmul_(mu, mu).mul_(0.5), mu], 1)
        only_i = torch.full((len(v),), -0.5 * v.shape[2]).to(v)
        return Factors(of_i, torch.cat([precision, pull.neg_()], 1), only_i, only_j)

    def likelihood_gradient(
        self, v: Tensor | Parts, draw: Draw, gradient: Tensor, out: Tensor | None = None
    ) -> Tensor:
        """(G, G·g·sigmoid(ρ))."""
        v, out = self.parts(v), self._blank(gradient, out)
        mu, rho = out.unbind()
        mu.add_(gradient)
        rho.addcmul_(gradient * draw.g, v.slope)
        return out

    def kl_gradient_q(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """((μ_q−μ_w)/σ_w², (σ_q/σ_w² − 1/σ_q)·sigmoid(ρ_q)).

        Differences are factored, so that the gradient is exactly 0 at q = w: Adam would turn a rounding
        error into steps of full size, and q and w would chase each other.
        """
        q, w = self.parts(q), self.parts(w)
        out = self._blank(q.mu, out)
        distance, excess, variance = gaps(q, w)
        mu, rho = out.unbind()
        torch.div(distance, variance, out=mu)
        torch.mul(excess.div_(variance.mul_(q.sigma)), q.slope, out=rho)
        return out

    def kl_gradient_w(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """((μ_w−μ_q)/σ_w², (1/σ_w − (σ_q²+(μ_q−μ_w)²)/σ_w³)·sigmoid(ρ_w))."""
        q, w = self.parts(q), self.parts(w)
        out, variance, distance = self._blank(q.mu, out), w.sigma.square(), w.mu - q.mu
        mu, rho = out.unbind()
        torch.div(distance, variance, out=mu)
        excess = (w.sigma - q.sigma).mul_(w.sigma + q.sigma).sub_(distance.square_())
        torch.mul(excess.div_(variance.mul_(w.sigma)), w.slope, out=rho)
        return out


def gaps(q: Parts, w: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """μ_q − μ_w, σ_q² − σ_w² and σ_w², of which the KL and its gradient by q are made."""
    return q.mu - w.mu, (q.sigma - w.sigma).mul_(q.sigma + w.sigma), w.sigma.square()


def kl_of_normals(mu_q: Tensor, sigma_q: Tensor, mu_w: Tensor, sigma_w: Tensor) -> Tensor:
    """KL(N_q ‖ N_w) of every weight."""
    ratio, z = sigma_q / sigma_w, (mu_q - mu_w) / sigma_w
    return ratio.square().add_(z.square()).sub_(1).sub_(ratio.log(), alpha=2).mul_(0.5)
