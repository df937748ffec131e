"""The paper's networks: ordinary `nn.Module`s, nothing Bayesian in them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from bayes_core.streams import seed_of


def dnn(input_shape: Sequence[int], classes: int) -> nn.Module:
    """One hidden layer of 100 ReLU units (784-100-10 on MNIST)."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), 100), nn.ReLU(), nn.Linear(100, classes)
    )


def vgg(input_shape: Sequence[int], classes: int) -> nn.Module:
    """conv3×3 blocks 16-M-32-M-64-M-128-M-128-M with ReLU, then one linear layer (pFedMe's VGG)."""
    channels, height, width = input_shape
    if min(height, width) < 32:
        raise ValueError(
            f"The model vgg halves an image five times and takes at least 32×32 pixels, not {height}×{width}."
        )
    layers: list[nn.Module] = []
    for out in (16, 32, 64, 128, 128):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * (height // 32) * (width // 32), classes))


NETWORKS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {"dnn": dnn, "vgg": vgg}


def build(model: str, input_shape: Sequence[int], classes: int, seed: int = 0) -> nn.Module:
    """The named network with PyTorch's own initialisation, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "network"))
        return NETWORKS[model](input_shape, classes)
