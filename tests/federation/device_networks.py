"""Networks of a user's own, for the tests of devices."""

import math

from torch import Tensor, nn


def normed(inputs: tuple[int, ...], classes: int) -> nn.Module:
    first, last = nn.Linear(math.prod(inputs), 16), nn.Linear(16, classes)
    return nn.Sequential(nn.Flatten(), first, nn.BatchNorm1d(16), nn.Tanh(), last)


def dropped(inputs: tuple[int, ...], classes: int) -> nn.Module:
    first, last = nn.Linear(math.prod(inputs), 16), nn.Linear(16, classes)
    return nn.Sequential(nn.Flatten(), first, nn.Dropout(0.3), nn.ReLU(), last)


class Waiting(nn.Module):
    """It looks at a number of the device in every pass, for which a GPU would be waited for."""

    def __init__(self, inputs: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(math.prod(inputs), classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out if float(out.detach().abs().max()) < 1e9 else out * 0
