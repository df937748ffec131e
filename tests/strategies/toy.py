"""A client whose loss is ½(θ − c)², for rounds that a reader can compute."""

from typing import Any

import torch
from torch import Tensor, nn

from client_app.method import ClientMethod, load
from fedbayes.protocol.settings import Settings, defaults


class Constant(nn.Module):
    """Says θ of every example, with noise 1: −log p is ½(y − θ)² but for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.theta.expand(len(x), 1)
        return torch.cat([mean, torch.zeros_like(mean)], 1)


def client(
    method: str, network: nn.Module, x: Tensor, y: Tensor, site: str = "a", **settings: Any
) -> ClientMethod:
    """The client's half of a method, with the defaults but for these settings (`fedpa.lr` as `fedpa__lr`)."""
    words = {key.replace("__", ".").replace("_", "-"): value for key, value in settings.items()}
    config = defaults() | {"method": method} | words
    return load(method)(Settings.parse(config), network, x, y, site, torch.device("cpu"))


def quadratic(method: str, c: float, **settings: Any) -> ClientMethod:
    """With the loss ½(θ − c)²: all of its four examples are in every batch."""
    return client(method, Constant(), torch.zeros(4, 1), torch.full((4,), c), **settings)
