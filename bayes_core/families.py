"""Distributions over a network's T weights, each one contiguous tensor of shape (rows, T).

Paper: "Federated Learning via Variational Bayesian Inference: Personalization, Sparsity and Clustering"
(Zhang, Li, Shao, Liu, Zhou, Li), equations of pFedBayes. Different from the paper: σ = softplus(ρ)
everywhere (its clustered section writes log(1+ρ), a slip).

No gradient here goes through autograd: with G = ∂(−log p)/∂θ of the plain network at a sampled θ, every
row's gradient is a closed form. The tests check each against torch.distributions and autograd.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

RHO_LIMIT = 25.0  # σ between 1e-11 and 25: beyond, float32 gradients overflow


class Draw(NamedTuple):
    """One sampled weight vector, with the noise that made it (its gradient needs both)."""

    theta: Tensor
    g: Tensor


class Family(ABC):
    """What an algorithm may ask of a distribution over weights."""

    rows: ClassVar[tuple[str, ...]]  # names of the rows, on the wire and in files

    @abstractmethod
    def sample(self, v: Tensor, generator: torch.Generator) -> Draw:
        """θ ~ v."""

    @abstractmethod
    def mirrored(self, v: Tensor, draw: Draw) -> Draw:
        """The draw with the opposite noise: as likely as `draw`, and its errors cancel the other's."""

    @abstractmethod
    def centre(self, v: Tensor) -> Tensor:
        """The weights of the posterior-mean network, shape (T,)."""

    def problem(self, v: Tensor) -> str | None:
        """Why `v` cannot be a distribution of this family, or None: what a server asks of an upload."""
        if v.ndim != 2 or v.shape[0] != len(self.rows):
            return f"shape {tuple(v.shape)} instead of ({len(self.rows)}, T)"
        if not bool(torch.isfinite(v).all()):
            return "values that are not finite"
        return None


class Point(Family):
    """One weight vector and no uncertainty: what FedAvg sends."""

    rows = ("theta",)

    def sample(self, v: Tensor, generator: torch.Generator) -> Draw:
        return Draw(v[0], torch.zeros(0))

    def mirrored(self, v: Tensor, draw: Draw) -> Draw:
        return draw

    def centre(self, v: Tensor) -> Tensor:
        return v[0]


class Gaussian(Family):
    """Mean-field Gaussian v = (μ, ρ): θ = μ + σ·g with σ = softplus(ρ) and g ~ N(0, 1)."""

    rows = ("mu", "rho")

    def problem(self, v: Tensor) -> str | None:
        if problem := super().problem(v):
            return problem
        if not bool((v[1].abs() < RHO_LIMIT).all()):
            return f"a ρ beyond ±{RHO_LIMIT:g}"
        return None

    def init(self, mu: Tensor, rho_init: float = -2.5) -> Tensor:
        """The start of every distribution: an ordinary network's weights, all equally uncertain."""
        return torch.stack([mu, torch.full_like(mu, rho_init)])

    def sample(self, v: Tensor, generator: torch.Generator) -> Draw:
        mu, rho = v
        g = torch.empty_like(mu).normal_(generator=generator)
        return Draw(torch.addcmul(mu, softplus(rho), g), g)

    def mirrored(self, v: Tensor, draw: Draw) -> Draw:
        return Draw(2 * v[0] - draw.theta, -draw.g)

    def centre(self, v: Tensor) -> Tensor:
        return v[0]

    def kl(self, q: Tensor, w: Tensor) -> Tensor:
        """KL(q ‖ w), summed over the weights; in float64, since near q = w its terms cancel."""
        (mu_q, rho_q), (mu_w, rho_w) = q.double(), w.double()
        sigma_w = softplus(rho_w)
        ratio = softplus(rho_q) / sigma_w
        terms: Tensor = 0.5 * (ratio.square() + ((mu_q - mu_w) / sigma_w).square() - 1 - 2 * ratio.log())
        return terms.sum()

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
