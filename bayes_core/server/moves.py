"""What clients have learned, without what the background of their inputs does to whole layers.

The gradient of a layer's weights is a sum of products (units × inputs). What all inputs have in common, be it the
border of an image or its mean brightness, adds the same few products in every step, and Adam makes full steps of them:
on MNIST they are most of what two clients have in common, whatever their images show, and with random labels, too.
They are the strongest in the singular value decomposition of the layer's move, by far. So the strongest are shortened
to the next one, client by client and layer by layer: then they count no more than what is learned about the inputs.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bayes_core.families import Family
from bayes_core.server.clustering import symmetric_kl_matrix, symmetric_kl_to

Layers = Sequence[tuple[int, int]]  # units and weights into each of them, part by part of the flat vector
ONE_IN, MOST = 16, 8  # of so many products (units or inputs) one is shortened, but not more than this
BESIDE, TURNS = 3, 12  # further directions that are iterated, and how often


def layers_of(shapes: Iterable[Sequence[int]]) -> Layers:
    """Of parameters of these shapes: PyTorch's weights have a row for each unit. A bias is a unit's only weight."""
    return [(shape[0], math.prod(shape[1:])) if len(shape) > 1 else (math.prod(shape), 1) for shape in shapes]


def compare_learned(
    uploads: Sequence[Tensor], start: Tensor, family: Family, layers: Layers
) -> tuple[Tensor, Tensor]:
    """Ψ (N, N) of what N clients have learned, and between each of them and the start (N): for `kinds`.

    Args:
        uploads: distributions (rows, T); not changed.
        start: the one (rows, T) from which all of them began.
        family: theirs.
        layers: of the network whose weights these are; one with few units or inputs stays as it is.
    """
    stack = torch.stack(list(uploads))
    at = 0
    for units, inputs in layers:
        part = slice(at, at := at + units * inputs)
        if strong := min(units // ONE_IN, inputs // ONE_IN, MOST):
            before = start[0, part].view(units, inputs)
            for mu in stack[:, 0]:
                shorten(mu[part].view(units, inputs), before, strong)
    return symmetric_kl_matrix(stack, family), symmetric_kl_to(start, stack, family)


def shorten(weights: Tensor, start: Tensor, strong: int) -> None:
    """In place: of the move of a layer, the strongest products get the size of the next one."""
    if weights.shape[0] > weights.shape[1]:
        weights, start = weights.T, start.T
    move = weights - start
    random = torch.Generator().manual_seed(0)
    basis = torch.randn(len(move), strong + 1 + BESIDE, generator=random)
    for _ in range(TURNS):
        basis = torch.linalg.qr(move @ (move.T @ basis))[0]
    turned, sizes, inputs = torch.linalg.svd(basis.T @ move, full_matrices=False)
    surplus = sizes[:strong] - sizes[strong]
    weights.sub_((basis @ turned[:, :strong]) @ (surplus[:, None] * inputs[:strong]))
