"""What clients have learned, without what the scale and the background of their inputs do to every weight alike.

A constant part of the inputs, be it the border of an image or the mean brightness, gives all weights into a unit the
same gradient, and Adam the same full step: on MNIST most of what two clients have in common is this, whatever their
images show, and with random labels too. It is one number for each unit, but it is in Ψ once for each weight. So the
common move of the m weights into a unit is divided by √m: it counts once.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bayes_core.families import Family
from bayes_core.server.clustering import symmetric_kl_matrix, symmetric_kl_to

Units = Sequence[tuple[int, int]]  # how many units, and weights into each, part by part of the flat vector
BOTH = 2  # μ and ρ; λ is a probability, and stays


def units_of(shapes: Iterable[Sequence[int]]) -> Units:
    """Of parameters of these shapes: PyTorch's weights have a row for each unit. A bias is a unit's only weight."""
    return [(shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape), 1) for shape in shapes]


def count_common_moves_once(stack: Tensor, start: Tensor, units: Units) -> None:
    """In place.

    Args:
        stack: distributions (N, rows, T) …
        start: … that all began here (rows, T).
        units: of the network whose weights these are.
    """
    at = 0
    for count, fan in units:
        part = slice(at, at := at + count * fan)
        if fan > 1:
            weights = stack[:, :BOTH, part].unflatten(2, (count, fan))
            before = start[:BOTH, part].unflatten(1, (count, fan))
            common = weights.mean(3, keepdim=True) - before.mean(2, keepdim=True)
            weights.sub_(common, alpha=1 - fan**-0.5)


def compare_learned(
    uploads: Sequence[Tensor], start: Tensor, family: Family, units: Units
) -> tuple[Tensor, Tensor]:
    """Ψ (N, N) of what N clients have learned, and between each of them and the start (N): for `kinds`."""
    stack = torch.stack(list(uploads))
    count_common_moves_once(stack, start, units)
    return symmetric_kl_matrix(stack, family), symmetric_kl_to(start, stack, family)
