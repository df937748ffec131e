"""The mean-field Gaussian: pFedBayes' distribution."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayes_core.families.base import Draw, Family, Noise, wide, within

RHO_LIMIT = 25.0  # σ between 1e-11 and 25: beyond, float32 gradients overflow


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

    def reparameterise(self, v: Tensor, noise: Noise) -> Draw:
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
