"""A client whose loss can be computed by hand: f(w) = a/2·(w − c)², one weight, the same for every example."""

from typing import Any

import torch
from torch import Tensor, nn

from bayes_core.networks import WithNoise
from client_app.method import ClientMethod, load
from fedbayes.launch.methods import checked
from fedbayes.protocol.settings import Settings, defaults

A, C = 2.0, 1.0


def settings_of(method: str, **words: Any) -> Settings:
    """With underscores for hyphens, and two of them for the dot after a method's name."""
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in words.items()}
    return checked(Settings.parse(defaults() | {"method": method} | given), given)


def client_of(network: nn.Module, x: Tensor, y: Tensor, method: str, **words: Any) -> ClientMethod:
    """The client's half of a method with these training data."""
    torch.set_num_threads(1)
    return load(method)(settings_of(method, **words), network, x, y, "site", torch.device("cpu"))


def quadratic(method: str, **words: Any) -> ClientMethod:
    """−log p(y | w·x) with x = 1, y = c and the noise 1/√a is f(w) and a constant."""
    network = WithNoise(nn.Linear(1, 1, bias=False), A**-0.5)
    return client_of(network, torch.ones(6, 1), torch.full((6,), C), method, batch_size=2, **words)


def one(value: float) -> Tensor:
    """A weight vector of one weight."""
    return torch.tensor([[value]])
