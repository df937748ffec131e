"""The server's arithmetic: mean, moments, extrapolate.

Sums are taken in float64 and rounded once to float32. The caller passes uploads in the order of their
site ids, so the result does not depend on the order in which clients answer.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus


def mean(uploads: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The mean of the uploads, row by row (the paper's step; uniform unless weighted)."""
    shares = _shares(uploads, weights)
    total = torch.zeros_like(uploads[0], dtype=torch.float64)
    for upload, share in zip(uploads, shares, strict=True):
        total.add_(upload.double(), alpha=share)
    return total.float()


def moments(uploads: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The w that minimises Σ KL(q_i ‖ w): the paper's lemma, for either family.

    μ_w = Σ λ_i μ_i / Σ λ_i, σ_w² = Σ λ_i [σ_i² + (μ_i − μ_w)²] / Σ λ_i, λ_w = mean λ_i. A Gaussian has λ_i = 1.
    """
    rows = [upload.double() for upload in uploads]
    shares = _shares(uploads, weights)
    gates = [
        share * (row[2].clamp_min(1e-30) if len(row) == 3 else torch.ones_like(row[0]))
        for row, share in zip(rows, shares, strict=True)
    ]
    total = torch.stack(gates).sum(0)
    mu, variance = torch.zeros_like(rows[0][0]), torch.zeros_like(rows[0][0])
    for row, gate in zip(rows, gates, strict=True):
        mu.addcmul_(row[0], gate / total)
    for row, gate in zip(rows, gates, strict=True):
        variance.addcmul_(softplus(row[1]).square() + (row[0] - mu).square(), gate / total)
    slab = torch.stack([mu, inverse_softplus(variance.sqrt())])
    return (slab if len(rows[0]) == 2 else torch.cat([slab, total[None]])).float()


def extrapolate(w: Tensor, target: Tensor, beta: float) -> Tensor:
    """w ← (1−β)·w + β·target; β > 1 goes beyond the target."""
    return torch.lerp(w.double(), target.double(), beta).to(w.dtype)


def inverse_softplus(sigma: Tensor) -> Tensor:
    """ρ with softplus(ρ) = σ, without overflow for large σ."""
    return sigma + torch.log(-torch.expm1(-sigma))


def _shares(uploads: Sequence[Tensor], weights: Sequence[float] | None) -> list[float]:
    if not uploads:
        raise ValueError("There is nothing to aggregate: no uploads.")
    if weights is None:
        return [1 / len(uploads)] * len(uploads)
    if len(weights) != len(uploads) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("Weights must be as many as the uploads, finite and not negative.")
    if sum(weights) <= 0:
        raise ValueError("Weights must not all be zero.")
    return [weight / sum(weights) for weight in weights]
