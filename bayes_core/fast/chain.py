"""Networks that are a chain of linear layers with ReLU between them, such as the DNN.

Several draws of such a network's weights can be run in one product a layer. Everything else goes draw by draw: through
`torch.func.vmap` the VGG took 1.2 to 2.3 times as long as in a loop.
"""

from typing import TypeGuard

import torch
from torch import Tensor, nn


def is_chain(network: nn.Module, batch: Tensor) -> TypeGuard[nn.Sequential]:
    """[Flatten,] Linear, ReLU, Linear …, Linear on examples that are vectors, with weights of their own."""
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
        and len({id(parameter) for layer in linear for parameter in layer.parameters()}) == 2 * len(linear)
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
