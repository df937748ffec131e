"""One weight vector and no uncertainty."""

import torch
from torch import Tensor

from bayes_core.families.base import RHO_INIT, Draw, Factors, Family, Noise, Parts


class Point(Family):
    """One weight vector v = (θ), a tensor (1, T), and no uncertainty: what FedAvg sends.

    Between two points KL means ½‖θ_q − θ_w‖², which it is for Gaussians of variance 1 around them. So clusters of
    points are those of their squared distances, and ζ·KL(q ‖ w) is a proximal term.
    """

    name = "point"
    rows = ("theta",)
    uncertain = False

    def init(self, mu: Tensor, rho_init: float = RHO_INIT, lambda_init: float = 1.0) -> Tensor:
        """The network's weights alone."""
        return mu[None].clone()

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        """None, and nothing is taken from the streams."""
        return Noise(torch.zeros(0))

    def parts(self, v: Tensor | Parts) -> Parts:
        return v if isinstance(v, Parts) else Parts(v[0])

    def reparameterise(self, v: Tensor | Parts, noise: Noise, out: Tensor | None = None) -> Draw:
        theta = self.parts(v).mu
        theta = theta if noise.g.ndim == 1 else theta.expand(len(noise.g), -1)
        return Draw(theta if out is None else out.copy_(theta), noise.g)

    def centre(self, v: Tensor) -> Tensor:
        return v[0]

    def kl_each(self, q: Tensor, w: Tensor) -> Tensor:
        return (q[0] - w[0]).square() / 2

    def kl_factors(self, v: Tensor) -> Factors:
        theta = v[:, 0]
        half = torch.linalg.vecdot(theta, theta) / 2
        return Factors(theta, -theta, half, half)

    def likelihood_gradient(
        self, v: Tensor | Parts, draw: Draw, gradient: Tensor, out: Tensor | None = None
    ) -> Tensor:
        return self._blank(gradient, out).add_(gradient)

    def kl_gradient_q(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """θ_q − θ_w."""
        q, w = self.parts(q), self.parts(w)
        return torch.sub(q.mu, w.mu, out=self._blank(q.mu, out)[0])[None]

    def kl_gradient_w(self, q: Tensor | Parts, w: Tensor | Parts, out: Tensor | None = None) -> Tensor:
        """θ_w − θ_q."""
        return self.kl_gradient_q(w, q, out)
