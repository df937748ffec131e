"""The paper's networks: ordinary `nn.Module`s, nothing Bayesian in them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

INPUT = "input"  # noise that depends on the input
NoiseKind = (
    float | Literal["input"] | None
)  # a standard deviation, the network's own output, or learned for all alike


def dnn(inputs: Sequence[int], classes: int) -> nn.Module:
    """One hidden layer of 100 ReLU units (784-100-10 on MNIST)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs), 100), nn.ReLU(), nn.Linear(100, classes))


def mlp(inputs: Sequence[int], classes: int) -> nn.Module:
    """Two hidden layers of 32 ReLU units: small tables and smooth functions."""
    first, second = nn.Linear(math.prod(inputs), 32), nn.Linear(32, 32)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), nn.Linear(32, classes))


def vgg(inputs: Sequence[int], classes: int) -> nn.Module:
    """conv3×3 blocks 16-M-32-M-64-M-128-M-128-M with ReLU, then one linear layer (pFedMe's VGG).

    Weights start as He et al. have it for ReLU ("Delving Deep into Rectifiers"), which passes images through all
    blocks at the size that they come in. PyTorch's own start makes them smaller block by block: the noise of a Bayesian
    network drowns what is left, and it learns nothing for ten rounds (docs/algorithm.md).
    """
    if len(inputs) != 3:
        raise ValueError(f"The model vgg takes images, not inputs of shape {tuple(inputs)}; take model=dnn.")
    channels, height, width = inputs
    if min(height, width) < 32:
        raise ValueError(
            f"The model vgg halves an image five times and takes at least 32×32 pixels, not {height}×{width}."
        )
    layers: list[nn.Module] = []
    for out in (16, 32, 64, 128, 128):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
        channels = out
    network = Photographs(*layers, nn.Flatten(), nn.Linear(128 * (height // 32) * (width // 32), classes))
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            gain: Literal["relu", "linear"] = "relu" if isinstance(layer, nn.Conv2d) else "linear"
            nn.init.kaiming_normal_(layer.weight, nonlinearity=gain)
            nn.init.zeros_(cast(Tensor, layer.bias))
    return network


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

    The noise is one number for all examples: given, or learned as one more weight of the network, with a distribution
    at each client and a prior at the server as all others have. Its logarithm is `START` at the weight 0 and changes by
    `PACE` times the weight, so that it moves within a few hundred steps of a usual learning rate. Or it depends on the
    input (`INPUT`): then it is the network's second output, between `START` − `BOUND` and `START` + `BOUND`.
    """

    START, PACE = math.log(0.5), 3.0  # targets are scaled to standard deviation 1
    BOUND = 4.0  # a factor of 55 either way: no single example can make its noise vanish

    def __init__(self, network: nn.Module, noise: NoiseKind) -> None:
        super().__init__()
        self.network = network
        self.by_input = noise == INPUT
        self.fixed = None if noise is None or isinstance(noise, str) else math.log(noise)
        self.noise = nn.Parameter(torch.zeros(1)) if noise is None else None

    @property
    def log_noise(self) -> Tensor:
        """Of all examples alike, shape (1,)."""
        if self.by_input:
            raise ValueError("This noise depends on the input.")
        if self.noise is None:
            return torch.tensor([self.fixed])
        return self.START + self.PACE * self.noise

    def forward(self, x: Tensor) -> Tensor:
        mean: Tensor = self.network(x)
        if self.by_input:
            raw = mean[..., 1:]
            return torch.cat([mean[..., :1], self.START + self.BOUND * torch.tanh(raw / self.BOUND)], -1)
        if self.fixed is not None:  # filled in where the mean is: nothing is copied from the host
            return torch.cat([mean, torch.full_like(mean, self.fixed)], -1)
        return torch.cat([mean, self.log_noise.to(mean).expand_as(mean)], -1)


class ManyLabels(nn.Module):
    """A network for several labels an example, each there or not: to all others, n·L examples of two classes.

    So what learns, predicts and measures classes does the same with labels, one decision for each.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        there: Tensor = self.network(x)  # (n, L) logits
        return torch.stack([torch.zeros_like(there), there], -1).flatten(0, 1)


def in_bfloat16(network: nn.Module) -> nn.Module:
    """The same network, whose passes in training take bfloat16 where `torch.autocast` finds that safe.

    Weights, gradients and outputs stay float32, and so does everything about a network that is not in training.
    """
    kind: Any = type(network)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.training):
            out: Tensor = kind.forward(self, x)
        return out.float()

    network.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return network


NETWORKS: dict[str, Callable[..., nn.Module]] = {"dnn": dnn, "mlp": mlp, "vgg": vgg}
