"""Which clients are alike: symmetric KL between their uploads, spectral clustering, and how many clusters.

cFedBayes, round 0: Ψ_ij = ½[KL(w_i‖w_j) + KL(w_j‖w_i)], similarity Φ = 1/(Ψ+ι) with a zero diagonal (1/ι
would swamp everything else), spectral clustering on Φ. Different from the paper: where the common start is known, Φ is
what two clients have learned in common (`kinds.py`), and so is the number of clusters found.

Ψ of N uploads is one matrix product over all weights. With precision p = 1/σ² the directed divergence of Gaussians is

    KL_ij = ½ Σ_m [(σ_i² + (μ_i−μ_j)²)·p_j − 1] + log σ_j − log σ_i

where Σ (μ_i−μ_j)²·p_j = μ_i²·p_j − 2 μ_i·(μ_j p_j) + Σ μ_j² p_j, and the log σ cancel when both directions are
added. Whatever depends on i alone or on j alone is a sum, the rest a product of a row of factors of i and one of j. μ
is centred first (by the median of a few: an absurd upload must not carry the centre away) and everything is in
float64, so that large, nearly equal means lose no digits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayes_core.families import Family
from bayes_core.server import kinds
from bayes_core.server.kinds import APART, Matrix, in_common, in_order, measure

IOTA = 1e-6
BLOCK = 2**19  # numbers in a block of uploads × weights: in float64 it fits a processor's cache
VOTERS = 9  # uploads that the centre is the median of


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


def symmetric_kl_to(start: Tensor, uploads: Iterable[Tensor], family: Family) -> Tensor:
    """Ψ between each upload and the distribution that all of them started from, (N,) in float64."""
    w = start.double()
    both = [float(family.kl(v.double(), w) + family.kl(w, v.double())) / 2 for v in uploads]
    return torch.tensor(both, dtype=torch.float64)


def affinity(psi: Tensor, start: Tensor | None = None) -> Matrix:
    """Φ = 1/(Ψ+ι), zero on the diagonal; with Ψ between each upload and the start, what each two have in common.

    Ψ is capped at 1e6 times its median, so that one absurd upload cannot blur the others' clusters.
    """
    if start is not None:
        common = np.maximum(in_common(_numbers(psi), _numbers(start)), IOTA)
        np.fill_diagonal(common, 0)
        return common
    positive = psi[psi > 0].double()
    ceiling = 1e6 * float(positive.median()) if len(positive) else 1.0
    phi: Matrix = (1 / (psi.double().clamp_max(ceiling) + IOTA)).numpy().copy()
    np.fill_diagonal(phi, 0)
    return phi


def spectral_clusters(psi: Tensor, k: int, seed: int = 0, start: Tensor | None = None) -> list[int]:
    """Spectral clustering of uploads.

    Args:
        psi: Ψ (N, N), from `symmetric_kl_matrix`.
        k: the number of clusters; with N or more every upload is its own.
        seed: of k-means.
        start: Ψ between each upload and the common start (N), if known.

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
    return in_order(model.fit(affinity(psi, start)).labels_.tolist())


def clusters_asked_for(psi: Tensor, k: int, seed: int, start: Tensor) -> list[int]:
    """K clusters: spectral by what clients have in common, or the tree's, where these are apart; else the paper's.

    The tree sees a client that is like no other; spectral clustering prefers clusters of like size.
    """
    paper = spectral_clusters(psi, k, seed)
    if not 1 < k < len(psi):
        return paper
    common = in_common(_numbers(psi), _numbers(start))
    joined = list(kinds.cuts(kinds.tree(common), len(psi)))[-k]
    candidates = [spectral_clusters(psi, k, seed, start), in_order(joined.tolist())]
    return next((labels for labels in candidates if _apart(common, labels)), paper)


def _apart(common: Matrix, labels: list[int]) -> bool:
    cut = measure(common, np.asarray(labels))
    return cut is not None and max(cut.common, *cut.strength[cut.single], -1.0) <= 1 - APART


def _numbers(psi: Tensor) -> Matrix:
    return psi.double().cpu().numpy()


@dataclass(frozen=True)
class Choice:
    """The chosen number of clusters and its evidence."""

    k: int
    eigenvalues: list[float]  # of the normalised Laplacian, ascending
    gap: float  # between eigenvalues k and k+1 (for k = 1: the largest but the first) …
    rest: float  # … and the median of the other gaps
    kinds: kinds.Kinds  # the partition, how sure it is, and why


def laplacian_eigenvalues(psi: Tensor, start: Tensor | None = None) -> Matrix:
    """Of I − D^(−½) Φ D^(−½), ascending; the first is 0."""
    phi = affinity(psi, start)
    root = np.sqrt(phi.sum(1))
    return np.asarray(np.linalg.eigvalsh(np.eye(len(phi)) - phi / np.outer(root, root)), np.float64)


def choose_k_with_evidence(psi: Tensor, start: Tensor | None = None, names: Sequence[str] = ()) -> Choice:
    """How many clusters there are, by what each two clients have in common (see `kinds.py`); 1 where there is doubt.

    Args:
        psi: Ψ (N, N), from `symmetric_kl_matrix`.
        start: Ψ between each upload and the common start (N). Without it a client that is like no other goes unseen.
        names: of the clients, for the words of the evidence.

    Returns:
        K with its evidence. The eigenvalues are for the eye: the gap after the K-th is wide where K is clear.
    """
    found = kinds.kinds(_numbers(psi), None if start is None else _numbers(start), names)
    values = laplacian_eigenvalues(psi, start) if len(psi) > 1 else np.zeros(1)
    if len(psi) < kinds.FEWEST:
        return Choice(1, values.tolist(), 0.0, 0.0, found)
    gaps = np.diff(values)  # gaps[k-1] is between eigenvalues k and k+1, counted from 1
    at = found.k - 1 if found.k > 1 else 1 + int(gaps[1 : len(psi) // 2].argmax())
    return Choice(
        found.k, values.tolist(), float(gaps[at]), float(np.median(np.delete(gaps, [0, at]))), found
    )


def choose_k(psi: Tensor) -> tuple[int, list[float]]:
    """How many clusters there are (see `choose_k_with_evidence`).

    Args:
        psi: Ψ (N, N), from `symmetric_kl_matrix`.

    Returns:
        K, and the N eigenvalues of the normalised Laplacian, ascending.
    """
    choice = choose_k_with_evidence(psi)
    return choice.k, choice.eigenvalues
