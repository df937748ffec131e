"""The w that minimises Σ KL(q_i ‖ w), in C (bayes_core/fast/moments.py) or PyTorch, with the same bits.

Each term is split into parts on fixed grids, so that the sums are free of rounding errors: the order of the uploads
leaves no trace, not even in the last bit.
"""

import math
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from bayes_core.fast.compiled import library
from bayes_core.fast.moments import GRIDS, HELD, LEAST, ROUNDING, STEPS
from bayes_core.fast.softplus import inverse_softplus, softplus
from bayes_core.server.blocks import blocks, in_threads

FEWER = 8  # uploads are held where `HELD` would take more than `KEPT` bytes
SPARE, KEPT = 2, 2**24  # places for held uploads that are kept for the next round, of at most so many bytes
OFF = 1e-12  # no λ counts as less, so that the sums of λ·σ² keep their digits


class Moments:
    """The paper's lemma, for either family.

    μ_w = Σ λ_i μ_i / Σ λ_i, σ_w² = Σ λ_i [σ_i² + (μ_i − μ_w)²] / Σ λ_i, λ_w = mean λ_i. A Gaussian has λ_i = 1.
    The squares are taken about the origin's μ, which is near: about 0 they would lose their digits. Those of σ, which
    may be far smaller, have a sum of their own. Weights that are off everywhere (λ below `OFF`) count alike.

    A term loses at most 2^-91 (4e-28), with gates, whose λ·σ² are smaller, 2^-139, and the sums nothing, as long as
    they stay below 2^42. They are most of the traffic with memory, so some uploads are held and added in one go.
    The first grid is for terms of 64 and more and for long sums; until there are any, nobody looks at its memory.
    """

    def __init__(self, origin: Tensor) -> None:
        self.origin = origin.float().contiguous()
        self.rows, self.size = origin.shape
        # on as many grids as λ·σ² is small, one for each kind of term; numpy's zeros take no memory until they are used
        self.totals = torch.from_numpy(np.zeros((self.rows + 1, self.rows + 1, self.size)))
        self.totals[1:].zero_()
        self.held: Tensor | None = None  # a place for uploads, with σ instead of ρ, while there are any
        self.weights: list[float] = []
        self.waiting: list[float] = []  # weights of those that are held
        self.wide = False  # whether the first grid is in use

    def add(self, upload: Tensor, weight: float = 1.0) -> None:
        if upload.shape != self.origin.shape:
            raise ValueError(f"An upload of the shape {tuple(upload.shape)} for {tuple(self.origin.shape)}.")
        if self.held is None:
            self.held = _place(self.rows, self.size)
        self._hold(upload.to("cpu", torch.float32).contiguous(), self.held[len(self.waiting)])
        self.weights.append(weight)
        self.waiting.append(weight)
        if len(self.waiting) == len(self.held):
            self._flush()

    def _hold(self, upload: Tensor, place: Tensor) -> None:
        """With σ in place of ρ: the softplus reads what has just come, and need not wait for memory."""
        kernels = library()

        def hold(begin: int, end: int) -> None:
            if isinstance(kernels, str):
                for block in blocks(end, begin):
                    place[:, block] = upload[:, block]
                    place[1, block] = softplus(upload[1, block])
            else:
                kernels.hold(place.data_ptr(), upload.data_ptr(), self.size, self.rows, begin, end)

        in_threads(self.size, hold)

    def _flush(self) -> None:
        in_threads(self.size, self._flush_part)
        self.waiting.clear()

    def _flush_part(self, begin: int, end: int) -> None:
        kernels = library()
        assert self.held is not None
        if isinstance(kernels, str):
            self.wide = True
            for block in blocks(end, begin):
                for upload, weight in zip(self.held, self.waiting, strict=False):
                    self._put(upload[:, block], block, weight)
                self._carry(self.totals[:, :, block])
        else:
            put = kernels.put_moments if self.rows == 2 else kernels.put_gated_moments
            weights = torch.tensor(self.waiting, dtype=torch.float64)
            pointers = (tensor.data_ptr() for tensor in (self.origin, self.held, weights))
            origin, held, weight = pointers
            given = self.totals.data_ptr(), self.size, origin, held, len(weights), weight
            if put(*given, OFF, 1.0, begin, end):
                self.wide = True

    def _put(self, upload: Tensor, block: slice, weight: float) -> None:
        distance = upload[0].double() - self.origin[0, block]
        terms = [distance, distance.square(), upload[1].double().square_()]
        if self.rows == 3:
            gate = upload[2].double().clamp_min(OFF)
            terms = [*(term.mul_(gate) for term in terms), gate]
        for kind, term in enumerate(terms):
            rest = term.mul_(weight)
            for k, total in enumerate(self.totals[:, kind, block]):
                if k == self.rows:
                    rest.view(torch.int64).bitwise_or_(1)  # never halfway between two numbers of the grid
                rounded = (rest + GRIDS[k]).sub_(GRIDS[k])
                total += rounded
                rest -= rounded

    def _carry(self, totals: Tensor) -> None:
        """What is large enough for the next coarser grid goes there, so that none runs out of range."""
        for k in range(len(totals) - 1, 0, -1):
            over = (totals[k] + GRIDS[k - 1]).sub_(GRIDS[k - 1])
            totals[k] -= over
            totals[k - 1] += over

    def result(self) -> Tensor:
        if self.waiting:
            self._flush()
        if self.held is not None:
            _keep(self.held)
            self.held = None
        out = torch.empty(self.origin.shape)
        weight, kernels = math.fsum(self.weights), library()

        def finish(begin: int, end: int) -> None:
            if isinstance(kernels, str):
                for block in blocks(end, begin):  # float64 throughout would take as much memory as the sums
                    self._finish(block, out[:, block], weight)
            else:
                last = kernels.finish_moments if self.rows == 2 else kernels.finish_gated_moments
                found, totals, origin = (tensor.data_ptr() for tensor in (out, self.totals, self.origin))
                last(found, totals, self.size, origin, weight, self.wide, begin, end)

        in_threads(self.size, finish)
        return out

    def _finish(self, block: slice, out: Tensor, weight: float) -> None:
        first, second, third, *fourth = value(self.totals[:, :, block])
        gates = fourth[0] if fourth else torch.tensor(weight, dtype=torch.float64)
        each = 1 / gates  # a division takes as long as ten products
        shift, square = first.mul_(each), second.mul_(each)
        spread = square - shift * shift
        # Where all μ_i are alike it is 0 but for rounding, which σ may be smaller than.
        spread.masked_fill_(spread < ROUNDING * square, 0)
        variance = third.mul_(each).add_(spread)
        out[0] = shift.add_(self.origin[0, block])
        out[1] = inverse_softplus(variance.clamp_min_(LEAST).sqrt_().float())
        if fourth:
            out[2] = gates.div_(weight)


_spare: list[Tensor] = []  # new memory takes as long as adding to it: the system clears it page by page
_lock = Lock()


def _place(rows: int, size: int) -> Tensor:
    """For as many uploads as are added in one go: fewer where they are large."""
    shape = (HELD if HELD * rows * size * 4 <= KEPT else FEWER, rows, size)
    with _lock:
        for number, one in enumerate(_spare):
            if one.shape == shape:
                return _spare.pop(number)
    return torch.empty(shape)


def _keep(place: Tensor) -> None:
    with _lock:
        if place.nbytes <= KEPT:
            _spare[:] = [place, *_spare][:SPARE]


def value(totals: Tensor) -> Tensor:
    """Sums on all their grids, each as one float64 that depends on nothing but their exact sum: float64 (kinds, T)."""
    parts: list[Tensor] = list(totals.clone())
    for k in range(len(parts) - 1, 0, -1):
        over = (parts[k] * (1 / STEPS[k - 1])).floor_().mul_(STEPS[k - 1])
        parts[k] -= over
        parts[k - 1] += over
    found = parts[0]
    for part in parts[1:]:  # the largest first: what is left of those that cancel is exact
        found += part
    return found
