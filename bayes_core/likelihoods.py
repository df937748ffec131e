"""−log p(y | network's outputs), summed over a batch.

The sum is scaled by n/b in `client_update`, once: nowhere else is a loss averaged.
"""

import math
from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import cross_entropy

Likelihood = Callable[[Tensor, Tensor], Tensor]


def categorical(logits: Tensor, y: Tensor) -> Tensor:
    """Classification."""
    return cross_entropy(logits, y, reduction="sum")


def gaussian(outputs: Tensor, y: Tensor) -> Tensor:
    """Regression: y ~ N(m, s²), the outputs being m and log s (see `WithNoise` in networks.py)."""
    mean, log_noise = outputs.unbind(-1)
    return ((y - mean) / log_noise.exp()).square().sum() / 2 + log_noise.sum() + len(y) * _HALF_LOG_2_PI


_HALF_LOG_2_PI = math.log(2 * math.pi) / 2


def likelihood_of(y: Tensor) -> Likelihood:
    """By the kind of targets: classes are whole numbers."""
    return gaussian if y.is_floating_point() else categorical
