"""The paper's networks, and a user's own: ordinary `nn.Module`s, nothing Bayesian in them."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from bayes_core.flat import fingerprint
from bayes_core.own import OwnError, find, problem
from bayes_core.streams import seed_of


def dnn(inputs: Sequence[int], classes: int) -> nn.Module:
    """One hidden layer of 100 ReLU units (784-100-10 on MNIST)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs), 100), nn.ReLU(), nn.Linear(100, classes))


def mlp(inputs: Sequence[int], classes: int) -> nn.Module:
    """Two hidden layers of 32 ReLU units: small tables and smooth functions."""
    first, second = nn.Linear(math.prod(inputs), 32), nn.Linear(32, 32)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(32, classes))


def vgg(inputs: Sequence[int], classes: int) -> nn.Module:
    """conv3×3 blocks 16-M-32-M-64-M-128-M-128-M with ReLU, then one linear layer (pFedMe's VGG)."""
    if len(inputs) != 3:
        raise OwnError(f"The model vgg takes images, not inputs of shape {tuple(inputs)}; take model=dnn.")
    channels, height, width = inputs
    if min(height, width) < 32:
        raise OwnError(
            f"The model vgg halves an image five times and takes at least 32×32 pixels, not {height}×{width}."
        )
    layers: list[nn.Module] = []
    for out in (16, 32, 64, 128, 128):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        channels = out
    return Photographs(*layers, nn.Flatten(), nn.Linear(128 * (height // 32) * (width // 32), classes))


class Photographs(nn.Sequential):
    """Layers that run over pixels whose channels lie side by side, where convolutions and pooling are fastest.

    For the same reason ReLU comes after the pooling, with a quarter of the numbers: both only compare, so the order
    changes neither the values nor the gradients.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        for layer in self:
            x = layer(x)
        return x


class WithNoise(nn.Module):
    """A network for a regression: for each example the mean, and the logarithm of the noise's standard deviation.

    The noise is one number for all examples. Where it is learned, it is one more weight of the network, with a
    distribution at each client and a prior at the server as all others have. Its logarithm is `START` at the weight 0
    and changes by `PACE` times the weight, so that it moves within a few hundred steps of a usual learning rate.
    """

    START, PACE = math.log(0.5), 3.0  # targets are scaled to standard deviation 1

    def __init__(self, network: nn.Module, noise: float | None) -> None:
        super().__init__()
        self.network = network
        self.fixed = None if noise is None else math.log(noise)
        self.noise = nn.Parameter(torch.zeros(1)) if noise is None else None

    @property
    def log_noise(self) -> Tensor:
        """Shape (1,)."""
        if self.noise is None:
            return torch.tensor([self.fixed])
        return self.START + self.PACE * self.noise

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.network(x)
        return torch.cat([mean, self.log_noise.to(mean).expand_as(mean)], -1)


NETWORKS: dict[str, Callable[..., nn.Module]] = {"dnn": dnn, "mlp": mlp, "vgg": vgg}


def build(
    model: str, inputs: Sequence[int], classes: int, seed: int = 0, noise: float | None = None
) -> nn.Module:
    """The network for so many classes; for none of them, a regression: one number with its noise (None = learned)."""
    if classes:
        return _plain(model, inputs, classes, seed)
    return WithNoise(_plain(model, inputs, 1, seed), noise)


def _plain(model: str, inputs: Sequence[int], classes: int, seed: int) -> nn.Module:
    """The named network, or that of a user's `package.module:function(inputs=…, classes=…)`.

    PyTorch's own initialisation, the same for the same seed.
    """
    if model in NETWORKS:
        return _seeded(NETWORKS[model], inputs, classes, seed)
    factory = find(model)
    try:
        network, again = (_seeded(factory, inputs, classes, seed) for _ in range(2))
    except Exception as error:  # whatever the user's code raises
        call = f"inputs={tuple(inputs)}, classes={classes}"
        raise OwnError(f"model={model} called with {call} failed with {problem(error)}.") from error
    if not isinstance(network, nn.Module) or not isinstance(again, nn.Module):
        raise OwnError(f"model={model} returned {type(network).__name__}; it takes a torch.nn.Module.")
    parameters = [*network.parameters(), *again.parameters()]
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        raise OwnError(f"model={model} has lazy layers, whose shapes are not known yet; give their sizes.")
    if not parameters or not all(parameter.is_floating_point() for parameter in parameters):
        raise OwnError(f"model={model} has no parameters, or some that are no floating-point numbers.")
    if fingerprint(network) != fingerprint(again):
        raise OwnError(
            f"model={model} made two networks of different shapes in two calls; all sites need the same one."
        )
    _require_outputs(network, model, inputs, classes)
    return network


def _seeded(factory: Callable[..., nn.Module], inputs: Sequence[int], classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(seed, "network"))
        return factory(inputs=tuple(inputs), classes=classes)


@torch.no_grad()
def _require_outputs(network: nn.Module, model: str, inputs: Sequence[int], classes: int) -> None:
    """One number a class for each example of a batch."""
    network.eval()
    try:
        shape = tuple(network(torch.zeros(2, *inputs)).shape)
    except Exception as error:  # whatever the user's network raises
        raise OwnError(
            f"model={model} failed on two examples of {tuple(inputs)}: {problem(error)}."
        ) from error
    finally:
        network.train()
    if shape != (2, classes):
        raise OwnError(f"model={model} gives {shape} for two examples, not (2, {classes}).")
