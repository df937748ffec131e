"""Which clients are alike: symmetric KL between their uploads, spectral clustering, and how many clusters.

cFedBayes, round 0: Ψ_ij = ½[KL(w_i‖w_j) + KL(w_j‖w_i)], similarity Φ = 1/(Ψ+ι) with a zero diagonal (1/ι
would swamp everything else), spectral clustering on Φ.

Ψ of N uploads is one matrix product over all weights. With precision p = 1/σ² the directed divergence of Gaussians is

    KL_ij = ½ Σ_m [(σ_i² + (μ_i−μ_j)²)·p_j − 1] + log σ_j − log σ_i

where Σ (μ_i−μ_j)²·p_j = μ_i²·p_j − 2 μ_i·(μ_j p_j) + Σ μ_j² p_j, and the log σ cancel when both directions are
added. Whatever depends on i alone or on j alone is a sum, the rest a product of a row of factors of i and one of j. μ
is centred first (by the median of a few: an absurd upload must not carry the centre away) and everything is in
float64, so that large, nearly equal means lose no digits.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayes_core.families import Family

IOTA = 1e-6
STANDS_OUT = 5.0
SMALLEST_GAP = 0.005
BLOCK = 2**19  # numbers in a block of uploads × weights: in float64 it fits a processor's cache
VOTERS = 9  # uploads that the centre is the median of
Matrix = NDArray[np.float64]


def symmetric_kl_matrix(stack: Tensor, family: Family) -> Tensor:
    """Ψ, how far apart uploads are: Ψ_ij = ½[KL(v_i ‖ v_j) + KL(v_j ‖ v_i)].

    Args:
        stack: constrained distributions (N, rows, T), λ as a probability; not changed.
        family: theirs. Between points Ψ is half the squared distance.

    Returns:
        (N, N) in float64, symmetric, 0 on the diagonal.
    """
    n, _, size = stack.shape
    directed = torch.zeros(n, n, dtype=torch.float64)
    width = max(BLOCK // n, 256)
    voters = torch.linspace(0, n - 1, min(n, VOTERS)).round().long()
    for start in range(0, size, width):
        v = stack[:, :, start : start + width].to(torch.float64, copy=True)
        v[:, 0].sub_(v[voters, 0].median(0).values)
        of_i, of_j, only_i, only_j = family.kl_factors(v)
        directed.addmm_(of_i, of_j.T).add_(only_i[:, None]).add_(only_j)
    psi = (directed + directed.T) / 2
    return psi.fill_diagonal_(0).clamp_min_(0)


def affinity(psi: Tensor) -> Matrix:
    """Φ = 1/(Ψ+ι), zero on the diagonal.

    Ψ is capped at 1e6 times its median, so that one absurd upload cannot blur the others' clusters.
    """
    positive = psi[psi > 0].double()
    ceiling = 1e6 * float(positive.median()) if len(positive) else 1.0
    phi: Matrix = (1 / (psi.double().clamp_max(ceiling) + IOTA)).numpy().copy()
    np.fill_diagonal(phi, 0)
    return phi


def spectral_clusters(psi: Tensor, k: int, seed: int = 0) -> list[int]:
    """Spectral clustering of uploads.

    Args:
        psi: Ψ (N, N), from `symmetric_kl_matrix`.
        k: the number of clusters; with N or more every upload is its own.
        seed: of k-means.

    Returns:
        A cluster 0 … k−1 for each upload, numbered in the order in which they first occur.
    """
    n = len(psi)
    if k >= n:
        return list(range(n))
    if k == 1:
        return [0] * n
    from sklearn.cluster import SpectralClustering  # a second to import, which every client would pay

    model = SpectralClustering(
        k, affinity="precomputed", random_state=seed % 2**32, assign_labels="kmeans", n_init=20
    )
    raw = model.fit(affinity(psi)).labels_.tolist()
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in raw]


@dataclass(frozen=True)
class Choice:
    """The chosen number of clusters and its evidence."""

    k: int
    eigenvalues: list[float]  # of the normalised Laplacian, ascending
    gap: float  # between eigenvalues k and k+1 (for k = 1: the largest gap that did not stand out) …
    rest: float  # … and the median of the other gaps


def laplacian_eigenvalues(psi: Tensor) -> Matrix:
    """Of I − D^(−½) Φ D^(−½), ascending; the first is 0."""
    phi = affinity(psi)
    root = np.sqrt(phi.sum(1))
    return np.asarray(np.linalg.eigvalsh(np.eye(len(phi)) - phi / np.outer(root, root)), np.float64)


def choose_k_with_evidence(psi: Tensor) -> Choice:
    """How many clusters there are, by the eigenvalue gap that stands out.

    With this kernel the first gap is always the largest and says nothing, so it is left out: K is where the
    largest of the others is, among K ≤ N/2, and 1 where that one does not stand out from the rest
    (`STANDS_OUT` times their median) or is tiny, as among clients that are all alike. Fewer than four clients
    are one cluster: there is no rest to compare with.
    """
    if len(psi) < 4:
        values = laplacian_eigenvalues(psi).tolist() if len(psi) > 1 else [0.0]
        return Choice(1, values, 0.0, 0.0)
    values = laplacian_eigenvalues(psi)
    gaps = np.diff(values)  # gaps[k-1] is between eigenvalues k and k+1, counted from 1
    candidates = gaps[1 : len(psi) // 2]
    k = 2 + int(candidates.argmax())
    gap = float(gaps[k - 1])
    rest = float(np.median(np.delete(gaps, [0, k - 1])))
    chosen = k if gap > max(SMALLEST_GAP, STANDS_OUT * rest) else 1
    return Choice(chosen, values.tolist(), gap, rest)


def choose_k(psi: Tensor) -> tuple[int, list[float]]:
    """How many clusters there are (see `choose_k_with_evidence`).

    Args:
        psi: Ψ (N, N), from `symmetric_kl_matrix`.

    Returns:
        K, and the N eigenvalues of the normalised Laplacian that tell it, ascending.
    """
    choice = choose_k_with_evidence(psi)
    return choice.k, choice.eigenvalues
