"""A linear classifier, for runs that cannot afford the noise of more weights: model=experiments.linear:linear."""

import math
from collections.abc import Sequence

from torch import nn


def linear(inputs: Sequence[int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs), classes))
