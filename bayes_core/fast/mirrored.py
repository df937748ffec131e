"""The gradient of −log p at the two draws of a mirrored pair at once, for any `nn.Module`.

Each draw sees one half of the batch; a batch too small to split is seen by both. Networks that are a chain of linear
layers with ReLU between them, such as the DNN, run several draws of their weights in one product per layer. Everything
else goes draw by draw: through `torch.func.vmap` the VGG took 1.2 to 2.3 times as long as in a loop.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from bayes_core.flat import around, trained
from bayes_core.likelihoods import Likelihood, value_and_gradient

SPLIT = 4  # from this many examples on: batch norm needs two in each half


class MirroredPair(Protocol):
    """Of a network, with the rows of `thetas` (2, T) as its weights: writing a draw there is all it takes."""

    def nll_gradients(
        self, x: Tensor, y: Tensor, scale: Tensor, likelihood: Likelihood
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """−log p of both halves, added up; and `scale` times its gradient: all parts of the one draw in the order of
        the row, then all of the other. They may be overwritten, and are by the next call."""


def mirrored_pair(
    network: nn.Module, thetas: Tensor, buffers: Mapping[str, Tensor], batch: Tensor
) -> MirroredPair:
    """For batches of this shape. The two share `buffers`, which training updates in place."""
    if len(batch) >= SPLIT and is_chain(network, batch):
        return Abreast(network, thetas)
    return Copies(network, thetas, buffers)


class Copies:
    """The network is copied around each row: its parameters are views into them, which costs a fifth of a
    `functional_call` for each draw, and one pass of autograd serves both."""

    def __init__(
        self,
        network: nn.Module,
        thetas: Tensor,
        buffers: Mapping[str, Tensor],
        beside: Sequence[Tensor] = (),
    ) -> None:
        """`beside`: constants of the network, one of each for both copies, whose gradients are asked for too."""
        self.networks: list[nn.Module] = []
        self.leaves: list[Tensor] = []
        for theta in thetas:
            self.networks.append(around(network, theta, buffers))
            self.leaves += trained(self.networks[-1]).values()
        self.beside = [one.requires_grad_() for one in beside]
        self.by_beside: Sequence[Tensor] = ()  # after each call, in their order

    def nll_gradients(
        self, x: Tensor, y: Tensor, scale: Tensor, likelihood: Likelihood
    ) -> tuple[Tensor, Sequence[Tensor]]:
        x_halves, y_halves = ([v, v] if len(x) < SPLIT else v.tensor_split(2) for v in (x, y))
        with torch.enable_grad():
            values = [
                likelihood(network(x), y)
                for network, x, y in zip(self.networks, x_halves, y_halves, strict=True)
            ]
            leaves = [*self.leaves, *self.beside]
            # Multiplied, and not given as `grad_outputs`: for those PyTorch imports sympy, 35 MB that nobody uses.
            gradients = torch.autograd.grad(
                [value * scale for value in values], leaves, allow_unused=True, materialize_grads=True
            )
        self.by_beside = gradients[len(self.leaves) :]
        return values[0].detach() + values[1].detach(), gradients[: len(self.leaves)]


class Abreast:
    """A chain of linear layers with ReLU between them, both draws in each operation and without autograd, which takes
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


def is_chain(network: nn.Module, batch: Tensor) -> TypeGuard[nn.Sequential]:
    """[Flatten,] Linear, ReLU, Linear …, Linear on examples that are vectors, each with trained weights of its own."""
    if type(network) is not nn.Sequential or any(map(_hooked, network.modules())):
        return False
    layers, flat = list(network), batch.ndim == 2
    if layers and type(layers[0]) is nn.Flatten:
        flat |= (layers[0].start_dim, layers[0].end_dim) == (1, -1)
        del layers[0]
    linear = layers[::2]
    return (
        flat
        and len(layers) % 2 == 1
        and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
        and all(type(layer) is nn.ReLU for layer in layers[1::2])
        and len({id(weight) for weight in network.parameters() if weight.requires_grad}) == 2 * len(linear)
    )


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def layers(network: nn.Sequential, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each linear layer's weights (S, out, in) and biases (S, out, 1), as views into S rows of T numbers."""
    views, begin = [], 0
    for layer in network:
        if isinstance(layer, nn.Linear):
            middle = begin + layer.weight.numel()
            end = middle + len(layer.bias)
            shape = (len(rows), *layer.weight.shape)
            views.append((rows[:, begin:middle].view(shape), rows[:, middle:end].unsqueeze(2)))
            begin = end
    return views


def outputs_of_all(network: nn.Sequential, thetas: Tensor, x: Tensor) -> Tensor:
    """What the network says with each of S rows of weights, shape (S, n, outputs)."""
    (weight, bias), *rest = layers(network, thetas)
    draws, out, size = weight.shape
    # all draws see the same inputs: one large product for the first layer
    h = torch.mm(x.flatten(1), weight.reshape(draws * out, size).T).view(len(x), draws, out)
    h = h.transpose(0, 1).add_(bias.transpose(1, 2))
    for weight, bias in rest:
        h = torch.baddbmm(bias.transpose(1, 2), h.relu_(), weight.transpose(1, 2))
    return h


def outputs_of_pairs(
    network: nn.Sequential, mu: Tensor, spread: Tensor, draws: int, chunks: Sequence[Tensor], mean: bool
) -> Tensor:
    """What the network says with the first `draws` of μ + s, μ − s for each row s of `spread` in turn, and before them,
    if `mean`, with μ itself: shape ([1 +] draws, n, outputs). Most of the work is the first layer's, whose sums are
    linear in its weights: x·(μ ± s) = x·μ ± x·s takes one product for μ and one for each pair, not two."""
    (weight, bias), *rest = layers(network, torch.cat([mu[None], spread]))
    rows, out, size = weight.shape
    by_input, beside = weight.reshape(rows * out, size).T, bias.flatten()
    signed = [(_signed(w, draws, mean), _signed(b, draws, mean).transpose(1, 2)) for w, b in rest]
    found = []
    for x in chunks:
        sums = torch.addmm(beside, x.flatten(1), by_input).view(len(x), rows, out)
        h = _signed(sums.transpose(0, 1), draws, mean)
        for weight, bias in signed:
            h = torch.baddbmm(bias, h.relu_(), weight.transpose(1, 2))
        found.append(h)
    return torch.cat(found, 1)


def _signed(rows: Tensor, draws: int, mean: bool) -> Tensor:
    """Of the rows μ, s, t, …: [μ,] μ + s, μ − s, μ + t, …"""
    out = rows.new_empty(mean + draws, *rows.shape[1:])
    if mean:
        out[0] = rows[0]
    torch.add(rows[:1], rows[1:], out=out[mean::2])
    torch.sub(rows[:1], rows[1 : 1 + draws // 2], out=out[mean + 1 :: 2])
    return out
