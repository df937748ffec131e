"""How much clients' models attend to each other: the message passing of FedAMP and HeurFedAMP (Huang et al., 2021).

A row i of an attention ξ (N, N) says what the cloud model u_i = Σ_j ξ_ij·w_j is made of; rows sum to 1. All of it comes
from one Gram matrix in float64.
"""

import torch
from torch import Tensor

from bayes_core.server.blocks import blocks


def gram(models: Tensor) -> Tensor:
    """The inner products (N, N) of models (N, T), in float64."""
    total = torch.zeros(len(models), len(models), dtype=torch.float64)
    for block in blocks(models.shape[1]):
        part = models[:, block].double()
        total += part @ part.T
    return total


def by_distance(models: Tensor, alpha: float, sigma: float) -> tuple[Tensor, float]:
    """FedAMP's ξ_ij = α·A′(‖w_i − w_j‖²) with A(x) = 1 − e^(−x/σ), and the α that was used.

    ξ_ii is the rest of the row, and must not be negative: where it would be, α is made smaller for all.
    """
    inner = gram(models)
    squares = inner.diagonal()[:, None] + inner.diagonal() - 2 * inner
    slopes = (-squares.clamp_min(0) / sigma).exp().div(sigma).fill_diagonal_(0)
    largest = float(slopes.sum(1).max())
    alpha = min(alpha, 1 / largest) if largest else alpha
    found = alpha * slopes
    return found + torch.diag(1 - found.sum(1)), alpha


def by_angle(models: Tensor, sharpness: float, own: float) -> Tensor:
    """HeurFedAMP's ξ_ij = (1 − ξ_ii)·softmax over the others of σ·cos(w_i, w_j); ξ_ii is `own`, or 1/N for 0."""
    n = len(models)
    if n == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    inner = gram(models)
    lengths = inner.diagonal().sqrt().clamp_min(torch.finfo(torch.float64).tiny)
    cosines = inner / lengths[:, None] / lengths
    share = own or 1 / n
    others = (sharpness * cosines).fill_diagonal_(-torch.inf).softmax(1)
    return (1 - share) * others + share * torch.eye(n, dtype=torch.float64)


def passed(attention: Tensor, models: Tensor) -> Tensor:
    """The cloud models u (N, T) of models w (N, T)."""
    found = torch.empty_like(models)
    for block in blocks(models.shape[1]):
        found[:, block] = (attention @ models[:, block].double()).to(models.dtype)
    return found
