"""Minibatches of one client round."""

from collections.abc import Iterator

import torch
from torch import Tensor


def minibatches(n: int, b: int, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """`count` batches of b ≤ n indices: passes over the shuffled data, one after the other.

    Every example is seen equally often (to within one), which independent draws do not give. A batch on the
    border of two passes may hold an example twice.
    """
    passes = -(-count * b // n)
    order = torch.cat(
        [torch.randperm(n, generator=generator, device=generator.device) for _ in range(passes)]
    )
    for start in range(0, count * b, b):
        yield order[start : start + b]
