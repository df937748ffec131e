"""The server's arithmetic: mean, moments, extrapolate.

Uploads are added one at a time, as they arrive, and need not be kept. The order leaves no trace in the result, not
even in the last bit: each term is split into a coarse and a fine part on two fixed grids, so that both sums are free
of rounding errors (see `Sum`).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayes_core.fast.compiled import library

BLOCK = 32768  # numbers at a time: what is computed on the way stays in the processor's cache
# Adding and taking away 1.5·2^k rounds a float64 to a multiple of 2^(k−52).
COARSE = 1.5 * 2.0**28  # to multiples of 2^-24: a sum of less than 2^29 has no rounding error
FINE = 1.5 * 2.0**-5  # to multiples of 2^-57; the fine parts, below 2^-25, of up to 2^20 terms fit

HELD = 8  # uploads that are added in one go
OFF = 1e-12  # no λ counts as less, so that the sums of λ·σ² keep their digits
ROUNDING = 2.0**-48  # of a difference of two float64 squares, which each take a few roundings


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


class DeepSum:
    """A `Sum` on more grids, for terms far below 1: each further one is 2^33 times as fine.

    On three a term loses at most 2^-91 (4e-28), on four 2^-124 (5e-38).
    """

    def __init__(self, grids: Tensor) -> None:
        self.grids = grids  # (grids, size), all zero

    def add(self, begin: int, terms: Tensor, weight: float) -> None:
        """Add weight · terms to the entries from `begin` on; in C where that can be had, with the same bits."""
        sums = self.grids[:, begin : begin + terms.numel()]
        if terms.shape != sums.shape[1:]:
            raise ValueError(f"Terms of the shape {tuple(terms.shape)} for {sums.shape[1]} sums.")
        terms, kernels = terms.double().cpu().contiguous(), library()
        if isinstance(kernels, str):
            rest = terms * weight
            for number, row in enumerate(sums):
                unit = COARSE * 2.0 ** (-33 * number)
                rounded = (rest + unit).sub_(unit)
                row += rounded
                rest -= rounded
        else:
            grids, size = self.grids.shape
            pointers = sums.data_ptr(), terms.data_ptr()
            kernels.tally_deep(pointers[0], size, grids, pointers[1], weight, COARSE, 0, len(terms))

    def value(self, block: slice = slice(None)) -> Tensor:
        total = self.grids[-1, block].clone()
        for row in reversed(self.grids[:-1, block].unbind()):  # the smallest first
            total += row
        return total


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


class Moments:
    """The w that minimises Σ KL(q_i ‖ w): the paper's lemma, for either family.

    μ_w = Σ λ_i μ_i / Σ λ_i, σ_w² = Σ λ_i [σ_i² + (μ_i − μ_w)²] / Σ λ_i, λ_w = mean λ_i. A Gaussian has λ_i = 1.
    The squares are taken about the origin's μ, which is near: about 0 they would lose their digits. Those of σ, which
    may be far smaller, have a sum of their own. Weights that are off everywhere (λ below `OFF`) count alike.

    The sums are most of the traffic with memory, so some uploads are held and added in one go.
    """

    def __init__(self, origin: Tensor) -> None:
        self.origin = origin.float().contiguous()
        rows, size = origin.shape
        # as many grids as σ² is small, and with gates λ·σ²
        self.sums = torch.zeros(rows + 1, rows + 1, size, dtype=torch.float64)
        self.held = torch.empty(HELD, rows, size)
        self.weights: list[float] = []
        self.waiting: list[float] = []  # weights of those that are held

    def add(self, upload: Tensor, weight: float = 1.0) -> None:
        self.held[len(self.waiting)].copy_(upload)
        self.weights.append(weight)
        self.waiting.append(weight)
        if len(self.waiting) == HELD:
            self._flush()

    def _flush(self) -> None:
        in_threads(self.held.shape[2], self._flush_part)
        self.waiting.clear()

    def _flush_part(self, begin: int, end: int) -> None:
        """By blocks of one thread each: the same bits with any number of threads, and what is held is read once."""
        kernels, (_, rows, size) = library(), self.held.shape
        held, weights = self.held[: len(self.waiting)], torch.tensor(self.waiting, dtype=torch.float64)
        for block in blocks(end, begin):
            for rho in held[:, 1, block]:
                softplus(rho, out=rho)  # type: ignore[call-arg]  # in place
            if isinstance(kernels, str):
                for upload, weight in zip(held, self.waiting, strict=True):
                    self._add(upload, block, weight)
            else:
                tally = kernels.tally_moments if rows == 2 else kernels.tally_gated_moments
                pointers = (tensor.data_ptr() for tensor in (self.sums, self.origin, self.held, weights))
                sums, origin, first, weight = pointers
                given = sums, size, origin, first, len(held), weight, OFF, COARSE, 1.0
                tally(*given, block.start, block.stop)

    def _add(self, held: Tensor, block: slice, weight: float) -> None:
        distance = held[0, block].double() - self.origin[0, block]
        terms = [distance, distance.square(), held[1, block].double().square_()]
        if len(held) == 3:
            gate = held[2, block].double().clamp_min(OFF)
            terms = [*(term.mul_(gate) for term in terms), gate]
        for grids, term in zip(self.sums, terms, strict=True):
            DeepSum(grids).add(block.start, term, weight)

    def result(self) -> Tensor:
        if self.waiting:
            self._flush()
        out = torch.empty(self.origin.shape)

        def finish(begin: int, end: int) -> None:
            for block in blocks(end, begin):  # float64 throughout would take as much memory as the sums
                self._finish(block, out[:, block])

        in_threads(out.shape[1], finish)
        return out

    def _finish(self, block: slice, out: Tensor) -> None:
        weight = math.fsum(self.weights)
        first, second, third, *fourth = (DeepSum(grids).value(block) for grids in self.sums)
        gates = fourth[0] if fourth else torch.tensor(weight, dtype=torch.float64)
        shift, square = first.div_(gates), second.div_(gates)
        spread = torch.addcmul(square, shift, shift, value=-1)
        # Where all μ_i are alike it is 0 but for rounding, which σ may be smaller than.
        spread.masked_fill_(spread < ROUNDING * square, 0)
        variance = third.div_(gates).add_(spread)
        out[0] = shift.add_(self.origin[0, block])
        out[1] = inverse_softplus(variance.clamp_min_(1e-22).sqrt_())
        if fourth:
            out[2] = gates.div_(weight)


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


def in_threads(size: int, work: Callable[[int, int], object]) -> None:
    """`work` on all of `size` numbers, a piece in each of PyTorch's threads; C gives the interpreter free meanwhile."""
    pieces = max(min(torch.get_num_threads(), size // BLOCK), 1)
    # whole blocks: PyTorch gives other bits at the end of a piece, where it does not fill a vector
    ends = [size // BLOCK * piece // pieces * BLOCK for piece in range(pieces)] + [size]
    threads = [Thread(target=work, args=ends[piece : piece + 2]) for piece in range(1, pieces)]
    for thread in threads:
        thread.start()
    work(ends[0], ends[1])
    for thread in threads:
        thread.join()


def blocks(end: int, begin: int = 0) -> Iterator[slice]:
    """Slices that cover the numbers from `begin` to `end`, a block each."""
    return (slice(start, min(start + BLOCK, end)) for start in range(begin, end, BLOCK))
