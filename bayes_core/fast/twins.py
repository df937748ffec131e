"""The gradient of −log p at two draws of the weights at once, for any `nn.Module`.

Each draw sees one half of the batch; a batch too small to split is seen by both.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from bayes_core.fast.chain import is_chain, layers
from bayes_core.flat import shapes_of, unflatten
from bayes_core.likelihoods import Likelihood, value_and_gradient

SPLIT = 4  # from this many examples on: batch norm needs two in each half


class Twins(Protocol):
    """Of a network, with the rows of `thetas` (2, T) as its weights: writing a draw there is all it takes."""

    def nll_gradients(
        self, x: Tensor, y: Tensor, scale: Tensor, likelihood: Likelihood
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """−log p of both halves, added up; and `scale` times its gradient: all parts of the one twin in the order of
        the row, then all of the other. They may be overwritten, and are by the next call."""


def twins(network: nn.Module, thetas: Tensor, buffers: Mapping[str, Tensor], batch: Tensor) -> Twins:
    """For batches of this shape. The two share `buffers`, which training updates in place."""
    if len(batch) >= SPLIT and is_chain(network, batch):
        return Abreast(network, thetas)
    return Copies(network, thetas, buffers)


class Copies:
    """The network is copied around each row: its parameters are views into them, which costs a fifth of a
    `functional_call` for each draw, and one pass of autograd serves both."""

    def __init__(self, network: nn.Module, thetas: Tensor, buffers: Mapping[str, Tensor]) -> None:
        self.networks: list[nn.Module] = []
        self.leaves: list[Tensor] = []
        for theta in thetas:
            views = unflatten(theta, shapes_of(network))
            leaves = {id(old): nn.Parameter(views[name]) for name, old in network.named_parameters()}
            kept = {id(old): buffers[name] for name, old in network.named_buffers() if name in buffers}
            self.networks.append(copy.deepcopy(network, leaves | kept))  # in place of the old ones
            self.leaves += leaves.values()

    def nll_gradients(
        self, x: Tensor, y: Tensor, scale: Tensor, likelihood: Likelihood
    ) -> tuple[Tensor, Sequence[Tensor]]:
        x_halves, y_halves = ([v, v] if len(x) < SPLIT else v.tensor_split(2) for v in (x, y))
        with torch.enable_grad():
            values = [
                likelihood(network(x), y)
                for network, x, y in zip(self.networks, x_halves, y_halves, strict=True)
            ]
            gradients = torch.autograd.grad(
                values, self.leaves, [scale] * len(values), allow_unused=True, materialize_grads=True
            )
        return values[0].detach() + values[1].detach(), gradients


class Abreast:
    """A chain of linear layers with ReLU between them, both twins in each operation and without autograd, which takes
    longer to call products of this size than they take. Examples lie in columns, so that the gradient of a weight
    matrix comes out in its own layout. An odd batch has a row of zeros more, whose outputs nobody asks for."""

    def __init__(self, network: nn.Sequential, thetas: Tensor) -> None:
        self.gradients = torch.empty_like(thetas)
        self.layers, self.by_layer = layers(network, thetas), layers(network, self.gradients)

    def nll_gradients(
        self, x: Tensor, y: Tensor, scale: Tensor, likelihood: Likelihood
    ) -> tuple[Tensor, Sequence[Tensor]]:
        inputs = [_even(x.flatten(1)).reshape(2, (len(x) + 1) // 2, -1).transpose(1, 2)]
        for weight, bias in self.layers:
            inputs.append(torch.baddbmm(bias, weight, inputs[-1]))
            if weight is not self.layers[-1][0]:
                inputs[-1].relu_()
        outputs = inputs.pop().transpose(1, 2)
        value, by_output = value_and_gradient(likelihood, outputs.flatten(0, 1)[: len(x)], y, scale)
        gradient = _even(by_output).view(outputs.shape).transpose(1, 2)
        backwards = list(zip(self.layers, self.by_layer, inputs, strict=True))[::-1]
        for (weight, _), (by_weight, by_bias), given in backwards:
            torch.bmm(gradient, given.transpose(1, 2), out=by_weight)
            torch.sum(gradient, 2, keepdim=True, out=by_bias)
            if given is not inputs[0]:
                gradient = torch.bmm(weight.transpose(1, 2), gradient)
                torch.ops.aten.threshold_backward.grad_input(gradient, given, 0, grad_input=gradient)
        return value, list(self.gradients)


def _even(rows: Tensor) -> Tensor:
    return pad(rows, (0, 0, 0, 1)) if len(rows) % 2 else rows
