"""Which networks are fully connected, and the same at another width."""

import pytest
import torch
from torch import nn

from bayes_core.chains import widened, widths_of
from bayes_core.networks import dnn, mlp, vgg


def test_widths() -> None:
    assert widths_of(dnn((1, 8, 8), 10)) == [64, 100, 10]
    assert widths_of(mlp((5,), 3)) == [5, 32, 32, 3]


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (vgg((3, 32, 32), 10), r"the layer 0 of the network \(Conv2d\) is not fully connected"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)),
            r"the layer 1 of the network \(BatchNorm1d\)",
        ),
        (nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2)), "no plain nn.Sequential"),
        (nn.Sequential(nn.Linear(2, 2)), "does not end with a linear layer after a hidden one"),
        (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()), "does not end with a linear layer"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)),
            "the layer 1 of the network has no bias",
        ),
        (nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)), "weights that are frozen"),
    ],
)
def test_what_is_not_fully_connected_is_named(network: nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        widths_of(network)


def test_another_width() -> None:
    one = mlp((5,), 3)
    wide = widened(one, [5, 40, 7, 3])
    assert widths_of(wide) == [5, 40, 7, 3] and widths_of(one) == [5, 32, 32, 3]
    assert wide(torch.zeros(2, 5)).shape == (2, 3)
