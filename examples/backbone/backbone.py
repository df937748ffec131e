"""A small convolutional network whose body may come from a file: `model=backbone:frozen` and the like.

    fedbayes run model=backbone:frozen …                   the body of the file as it is; only the head is learned
    fedbayes run model=backbone:warm bayesian=head …       the body goes on learning, as plain weights; a Bayesian head
    fedbayes run model=backbone:fresh …                    the same network without the file

The file is `backbone.safetensors` in the folder where the command is started, or what BACKBONE names: a state dict of
`body` alone. To use weights of your own, put your network in place of `body` and your file in place of that one.
"""

import os

from safetensors.torch import load_file
from torch import nn

CHANNELS = (32, 64, 64)


def body(channels: int) -> nn.Sequential:
    """Three convolutions, each with half the pixels of the one before: 1024 features of a 32×32 image."""
    layers: list[nn.Module] = []
    for out in CHANNELS:
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        channels = out
    return nn.Sequential(*layers, nn.Flatten())


class Network(nn.Module):
    """A body and a head, so that `bayesian=head` and `bayesian=body` name them."""

    def __init__(self, inputs: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = inputs
        self.body = body(channels)
        self.head = nn.Linear(CHANNELS[-1] * (height // 8) * (width // 8), classes)

    def forward(self, x):
        return self.head(self.body(x))


def fresh(inputs: tuple[int, ...], classes: int) -> nn.Module:
    return Network(inputs, classes)


def warm(inputs: tuple[int, ...], classes: int) -> nn.Module:
    network = Network(inputs, classes)
    network.body.load_state_dict(load_file(os.environ.get("BACKBONE", "backbone.safetensors")))
    return network


def frozen(inputs: tuple[int, ...], classes: int) -> nn.Module:
    network = warm(inputs, classes)
    network.body.requires_grad_(False)  # constants: neither sampled nor sent nor stored
    return network
