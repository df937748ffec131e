"""FedPA's Δ = Σ̂⁻¹(w − μ̂): how far the server should go for one client, from samples of that client's posterior.

Al-Shedivat, Gillenwater, Xing, Rostamizadeh: "Federated Learning via Posterior Averaging: A New Perspective and
Practical Algorithms", 2021. Of samples s₁ … s_ℓ with mean μ̂ and covariance S (÷(ℓ−1)), Σ̂ = ϱ·I + (1−ϱ)·S with
ϱ = 1/(1 + (ℓ−1)·ρ). Every sample changes Σ̂ by a matrix of rank one, so that by Sherman and Morrison's formula Δ costs
O(ℓ²T), and Σ̂ (T×T) is never made.
"""

import torch
from torch import Tensor

from bayes_core.families import wide


class PosteriorDelta:
    """Takes samples of the client's posterior one by one. All arithmetic is in float64; no number leaves the device."""

    def __init__(self, w: Tensor, shrinkage: float) -> None:
        """`w` are the server's weights, of any shape; `shrinkage` is ρ, with 0 for Σ̂ = I."""
        self.w = w
        self.rho = shrinkage
        self.count = 0
        self.mean = self.delta = wide(w.reshape(-1))
        self._before: list[
            tuple[Tensor, Tensor]
        ] = []  # of each sample from the second on: v, and γ/(1 + γ·u·v)

    def add(self, sample: Tensor) -> None:
        """One more sample, of w's shape."""
        s = wide(sample.reshape(-1))
        self.count += 1
        t = self.count
        if t == 1:
            self.mean, self.delta = s, self.delta - s
            return
        u = s - self.mean
        v = u.clone()
        for earlier, factor in self._before:
            v -= factor * (earlier @ u) * earlier
        gamma, uv = self.rho * (t - 1) / t, u @ v
        factor = torch.full_like(uv, gamma) / (1 + gamma * uv)  # number / tensor would round twice
        self.delta = self.delta - (1 + factor * (t * (u @ self.delta) - uv)) * v / t
        self.mean = self.mean + u / t
        self._before.append((v, factor))

    def result(self) -> Tensor:
        """Δ, in w's shape and precision; of a single sample w − s₁."""
        scale = 1 + (self.count - 1) * self.rho
        return (scale * self.delta).view(self.w.shape).to(self.w)

    def correction(self) -> float:
        """‖ϱΔ − (w − μ̂)‖ / ‖w − μ̂‖: what S changes. Near 0, Δ is w − μ̂ but for its length, as in FedAvg."""
        plain = wide(self.w.reshape(-1)) - self.mean
        return float((self.delta - plain).norm() / plain.norm().clamp_min(1e-300))
