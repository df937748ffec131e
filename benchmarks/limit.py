"""The kernels that no client step can avoid, each timed alone on memory that is there already."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Call = Callable[[], object]
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def kernels(network: nn.Sequential, x: Tensor, gated: bool) -> dict[str, Call]:
    """For one step on q and one on w with this batch."""
    weights = sum(parameter.numel() for parameter in network.parameters())
    noise, rho, sigma = torch.empty(weights), torch.full((2, weights), -2.5), torch.empty(2, weights)
    rows = 3 if gated else 2
    calls: dict[str, Call] = {
        "normal draws": noise.normal_,
        "softplus of q and w": lambda: torch.ops.aten.softplus.out(rho, out=sigma),
        "matrix products": products(network, x),
        "Adam over q": fused_adam(rows, weights),
        "Adam over w": fused_adam(rows, weights),
    }
    if gated:
        uniform, logit, gates = torch.empty(weights), torch.randn(2, weights), torch.empty(2, weights)
        calls["uniform draws"] = lambda: uniform.uniform_(1e-7, 1 - 1e-7).logit_()
        calls["λ of q and w"] = lambda: torch.sigmoid(logit, out=gates)
        calls["gate's slope"] = lambda: torch.sigmoid(logit[0], out=gates[0])
    return calls


def fused_adam(rows: int, weights: int) -> Call:
    parameters, gradient, first, second = torch.randn(4, rows, weights)
    second.abs_()
    steps = torch.tensor(1.0)

    def step() -> None:
        torch._fused_adam_(
            [parameters], [gradient], [first], [second], [], [steps],
            lr=1e-3, beta1=BETA1, beta2=BETA2, weight_decay=0.0, eps=EPS, amsgrad=False, maximize=False,
        )  # fmt: skip

    return step


def products(network: nn.Sequential, x: Tensor) -> Call:
    """Every layer's product forwards, and backwards for its weights and (but for the first layer) its inputs."""
    calls: list[Call] = []
    for layer in network:
        after = layer(x).detach()
        if isinstance(layer, nn.Linear):
            calls += _linear(x, after, layer.weight.detach(), layer.bias.detach(), first=not calls)
        elif isinstance(layer, nn.Conv2d):
            calls += _convolution(x, after, layer, first=not calls)
        x = after

    def run() -> None:
        for call in calls:
            call()

    return run


def _linear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, first: bool) -> list[Call]:
    to_weight, to_x = torch.empty_like(weight), torch.empty_like(x)
    calls: list[Call] = [
        lambda: torch.addmm(bias, x, weight.T, out=y),
        lambda: torch.mm(y.T, x, out=to_weight),
    ]
    return calls if first else [*calls, lambda: torch.mm(y, weight, out=to_x)]


def _convolution(x: Tensor, y: Tensor, layer: nn.Conv2d, first: bool) -> list[Call]:
    weight, bias = layer.weight.detach(), layer.bias.detach()  # type: ignore[union-attr]
    wanted = [not first, True, True]

    def backwards() -> None:
        torch.ops.aten.convolution_backward(
            y, x, weight, [len(bias)], layer.stride, layer.padding, layer.dilation, False, [0, 0], 1, wanted
        )

    return [lambda: torch.nn.functional.conv2d(x, weight, bias, padding=layer.padding), backwards]
