"""A distribution as named numpy arrays, one for each row: the form that travels and is checked on arrival."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def encode(v: Tensor, rows: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """Row name → float32 array (of the same memory, where `v` is float32 on the CPU)."""
    return {name: row.numpy() for name, row in zip(rows, v.detach().float().cpu(), strict=True)}


def decode(arrays: Mapping[str, NDArray[np.float32]], rows: Sequence[str]) -> Tensor:
    """The (rows, T) tensor; ValueError says in words what does not fit."""
    if sorted(arrays) != sorted(rows):
        raise ValueError(f"rows {sorted(arrays)} instead of {sorted(rows)}")
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"rows of shapes {sorted(shapes)} instead of equal lengths")
    if any(array.dtype != np.float32 for array in arrays.values()):
        raise ValueError("rows of another type than float32")
    return torch.from_numpy(np.stack([arrays[name] for name in rows]))
