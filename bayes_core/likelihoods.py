"""−log p(y | network's outputs), summed over a batch.

The sum is scaled by n/b in `client_update`, once: nowhere else is a loss averaged.
"""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy

Likelihood = Callable[[Tensor, Tensor], Tensor]


def categorical(logits: Tensor, y: Tensor) -> Tensor:
    """Classification."""
    return cross_entropy(logits, y, reduction="sum")
