"""Sparse models without the weights that are off: as weights, and packed in fewer bytes."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from bayes_core.families import Family

MASK, VALUES = ".mask", ".values"


def prune(family: Family, v: Tensor, threshold: float) -> Tensor:
    """The posterior-mean weights λ·μ of an unconstrained distribution, 0 where λ is not above the threshold."""
    return torch.where(family.inclusion(family.constrain(v)) > threshold, family.centre(v), 0)


def pack(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor as one bit per entry (is it on?) and the values of those that are."""
    packed = {}
    for name, weight in weights.items():
        on = weight.reshape(-1) != 0
        packed[name + MASK] = torch.from_numpy(np.packbits(on.numpy()))
        packed[name + VALUES] = weight.reshape(-1)[on]
    return packed


def unpack(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The reverse of `pack` for weights of these shapes; other tensors stay as they are."""
    packed = {name + part for name in shapes for part in (MASK, VALUES)}
    weights = {name: tensor for name, tensor in tensors.items() if name not in packed}
    for name, shape in shapes.items():
        weight = torch.zeros(math.prod(shape))
        on = np.unpackbits(tensors[name + MASK].numpy(), count=len(weight))
        weight[torch.from_numpy(on).bool()] = tensors[name + VALUES]
        weights[name] = weight.view(*shape)
    return weights
