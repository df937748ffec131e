"""Sums that a few hostile uploads cannot pull far: trimmed mean, median, Krum.

For uploads (rows, T) of any family, each counting once: whoever could say how much it counts would need no other lie.
All uploads are kept until the result is asked for: S uploads take S·rows·T float32 numbers, where a mean takes a fixed
number of sums. The order of the uploads leaves no trace in the result.

Yin, Chen, Kannan, Bartlett 2018: "Byzantine-Robust Distributed Learning" (trimmed mean, median). Blanchard, El Mhamdi,
Guerraoui, Stainer 2017: "Machine Learning with Adversaries" (Krum; here Multi-Krum, which averages all that it trusts).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from bayes_core.server.aggregate import Mean
from bayes_core.server.blocks import blocks

SHARE = 0.2  # of the uploads that may be hostile, where nothing is said


def hostile_among(number: int, share: float = SHARE) -> int:
    """How many of so many uploads a robust sum is prepared for: the share rounded up, and fewer than half."""
    return max(min(math.ceil(share * number - 1e-9), (number - 1) // 2), 0)


class Held(ABC):
    """Uploads that are kept until the result."""

    def __init__(self, origin: Tensor, share: float = SHARE) -> None:
        self.shape = origin.shape
        self.share = share
        self.uploads: list[Tensor] = []

    def add(self, upload: Tensor, weight: float = 1.0) -> None:
        """`weight` is what an upload says of itself, and is not heard."""
        if upload.shape != self.shape:
            raise ValueError(f"An upload of the shape {tuple(upload.shape)} instead of {tuple(self.shape)}.")
        self.uploads.append(upload.detach().cpu().float())

    @abstractmethod
    def result(self) -> Tensor: ...


class Sorted(Held):
    """Number by number: the uploads' values in order, and some of them from the middle."""

    @abstractmethod
    def cut(self, number: int) -> int:
        """How many are left out at either end, of so many."""

    def result(self) -> Tensor:
        number, flat = len(self.uploads), [upload.reshape(-1) for upload in self.uploads]
        cut, out = self.cut(number), torch.empty(self.shape.numel())
        for block in blocks(len(out)):
            values = torch.stack([upload[block] for upload in flat]).sort(0).values[cut : number - cut]
            out[block] = values.double().mean(0).float()
        return out.view(self.shape)


class TrimmedMean(Sorted):
    """The mean without the smallest and the largest: as many at either end as may be hostile."""

    def cut(self, number: int) -> int:
        return hostile_among(number, self.share)


class Median(Sorted):
    """The middle value, or the mean of the two in the middle."""

    def cut(self, number: int) -> int:
        return (number - 1) // 2


class Krum(Held):
    """The mean of those uploads that have the nearest neighbours; as many are left out as may be hostile.

    Distances are squares, each row of a distribution in units of its median distance: μ, ρ and λ count alike.
    """

    def result(self) -> Tensor:
        total = Mean(torch.empty(self.shape))
        for upload in self.trusted():
            total.add(upload)
        return total.result()

    def trusted(self) -> list[Tensor]:
        """The uploads that are averaged."""
        number = len(self.uploads)
        hostile = hostile_among(number, self.share)
        if not hostile:
            return self.uploads
        nearest = max(number - hostile - 2, 1)
        scores = self._distances().sort(1).values[:, 1 : 1 + nearest].sum(1)  # the first is its own, 0
        best = scores.argsort()[: number - hostile]
        return [self.uploads[i] for i in best.tolist()]

    def _distances(self) -> Tensor:
        number, rows = len(self.uploads), self.shape[0] if len(self.shape) > 1 else 1
        found = torch.zeros(rows, number, number, dtype=torch.float64)
        flat = [upload.reshape(rows, -1) for upload in self.uploads]
        for i in range(number):
            for j in range(i):
                found[:, i, j] = found[:, j, i] = (flat[i] - flat[j]).double().square().sum(1)
        below = torch.ones(number, number).tril(-1).bool()
        typical = found[:, below].median(1).values
        return (found / typical.clamp_min(torch.finfo(torch.float64).tiny)[:, None, None]).sum(0)


BY_NAME: dict[str, Callable[..., Held]] = {"trimmed-mean": TrimmedMean, "median": Median, "krum": Krum}
