"""Networks of a user's own, for the tests of devices."""

import math

from torch import nn


def normed(inputs: tuple[int, ...], classes: int) -> nn.Module:
    first, last = nn.Linear(math.prod(inputs), 16), nn.Linear(16, classes)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(16), nn.Tanh(), last)


def dropped(inputs: tuple[int, ...], classes: int) -> nn.Module:
    first, last = nn.Linear(math.prod(inputs), 16), nn.Linear(16, classes)
    return nn.Sequential(nn.Flatten(), first, nn.Dropout(0.3), nn.ReLU(), last)
