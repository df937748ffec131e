"""The server's arithmetic: mean, moments, extrapolate.

Uploads are added one at a time, as they arrive, and need not be kept. The order leaves no trace in the result, not
even in the last bit: each term is split into a coarse and a fine part on two fixed grids, so that both sums are free
of rounding errors (see `Sum`).
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bayes_core.fast.compiled import library
from bayes_core.server.blocks import blocks
from bayes_core.server.moments import Moments

# Adding and taking away 1.5·2^k rounds a float64 to a multiple of 2^(k−52).
COARSE = 1.5 * 2.0**28  # to multiples of 2^-24: a sum of less than 2^29 has no rounding error
FINE = 1.5 * 2.0**-5  # to multiples of 2^-57; the fine parts, below 2^-25, of up to 2^20 terms fit


class Sum:
    """A sum of float64 terms that does not depend on their order.

    A term loses at most 2^-58 (3e-18), and the sum nothing, as long as it stays below 2^29. Beyond, it is an ordinary
    float64 sum.
    """

    def __init__(self, size: int) -> None:
        self.coarse = torch.zeros(size, dtype=torch.float64)
        self.fine = torch.zeros(size, dtype=torch.float64)

    def add(self, begin: int, terms: Tensor, weight: float) -> None:
        """Add weight · terms to the entries from `begin` on; in C where that can be had, with the same bits."""
        coarse, fine = (row[begin : begin + terms.numel()] for row in (self.coarse, self.fine))
        if terms.shape != coarse.shape:
            raise ValueError(f"Terms of the shape {tuple(terms.shape)} for {len(coarse)} sums.")
        if terms.dtype != torch.float32:
            terms = terms.double()
        terms = terms.cpu().contiguous()
        kernels = library()
        if isinstance(kernels, str):
            for block in blocks(len(terms)):
                term = terms[block].double() * weight
                rounded = (term + COARSE).sub_(COARSE)
                coarse[block] += rounded
                fine[block] += term.sub_(rounded).add_(FINE).sub_(FINE)
        else:
            pointers = (row.data_ptr() for row in (coarse, fine, terms))
            tally = kernels.tally if terms.dtype == torch.float32 else kernels.tally_wide
            tally(*pointers, weight, COARSE, FINE, 0, len(terms))

    def value(self) -> Tensor:
        return self.coarse + self.fine


class Aggregate(Protocol):
    """What uploads are added to. It starts from `origin`, a distribution near them: the server's own."""

    def __init__(self, origin: Tensor) -> None: ...

    def add(self, upload: Tensor, weight: float = 1.0) -> None: ...

    def result(self) -> Tensor: ...


class Mean:
    """The mean of the uploads, row by row (the paper's step)."""

    def __init__(self, origin: Tensor) -> None:
        self.shape = origin.shape
        self.total = Sum(origin.numel())
        self.weights: list[float] = []

    def add(self, upload: Tensor, weight: float = 1.0) -> None:
        self.total.add(0, upload.reshape(-1), weight)
        self.weights.append(weight)

    def result(self) -> Tensor:
        return self.total.value().div_(math.fsum(self.weights)).float().view(self.shape)


def mean(uploads: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The mean of the uploads, row by row: the paper's step.

    Args:
        uploads: constrained distributions, each (rows, T).
        weights: one number for each, finite and not negative; uniform by default.

    Returns:
        (rows, T) in float32; the order of the uploads leaves no trace in it.
    """
    weights = _checked(uploads, weights)
    return _fill(Mean(uploads[0]), uploads, weights)


def moments(uploads: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    """The w that minimises Σ KL(q_i ‖ w): the paper's lemma.

    Args:
        uploads: constrained distributions with uncertainty, each (2, T), or (3, T) with λ.
        weights: one number for each, finite and not negative; uniform by default.

    Returns:
        (rows, T) in float32.
    """
    weights = _checked(uploads, weights)
    return _fill(Moments(mean(uploads, weights)), uploads, weights)


def extrapolate(w: Tensor, target: Tensor, beta: float) -> Tensor:
    """The server's step, (1−β)·w + β·target.

    Args:
        w: the server's distribution (rows, T), constrained.
        target: what the uploads have made, of the same shape.
        beta: β; beyond 1 it goes beyond the target, and `Family.after_extrapolation` puts λ right.

    Returns:
        The next w (rows, T), computed in float64, in w's own precision.
    """
    return torch.lerp(w.double(), target.double(), beta).to(w.dtype)


def inverse_softplus(sigma: Tensor) -> Tensor:
    """ρ with softplus(ρ) = σ, without overflow for large σ."""
    return sigma + torch.log(-torch.expm1(-sigma))


def _checked(uploads: Sequence[Tensor], weights: Sequence[float] | None) -> Sequence[float]:
    if not uploads:
        raise ValueError("There is nothing to aggregate: no uploads.")
    if weights is None:
        return [1.0] * len(uploads)
    if len(weights) != len(uploads) or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError("Weights must be as many as the uploads, finite and not negative.")
    if sum(weights) <= 0:
        raise ValueError("Weights must not all be zero.")
    return weights


def _fill(aggregate: Aggregate, uploads: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    for upload, weight in zip(uploads, weights, strict=True):
        aggregate.add(upload, weight)
    return aggregate.result()
