"""Fully connected networks: linear layers in a row, whose hidden neurons can be permuted, left out or added."""

import copy
from collections.abc import Sequence

from torch import nn

from bayes_core.flat import trained

# What may stand between the linear layers: it looks at one neuron at a time.
BETWEEN = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Dropout, nn.Identity,
)  # fmt: skip


def widths_of(network: nn.Module) -> list[int]:
    """Inputs, hidden neurons of each layer, outputs; ValueError names the layer that is not fully connected."""
    for name, layer in network.named_modules():
        if next(layer.children(), None) is None and not isinstance(layer, (nn.Linear, nn.Flatten, *BETWEEN)):
            raise ValueError(
                f"the layer {name or 'itself'} of the network ({type(layer).__name__}) is not fully connected"
            )
    linear = _linear(network)
    if type(network) is not nn.Sequential or any(next(layer.children(), None) for layer in network):
        raise ValueError(f"the network ({type(network).__name__}) is no plain nn.Sequential of layers")
    if len(linear) < 2 or network[-1] is not linear[-1]:
        raise ValueError("the network does not end with a linear layer after a hidden one")
    for layer in linear:
        if layer.bias is None:
            raise ValueError(f"the layer {list(network).index(layer)} of the network has no bias")
    if len(trained(network)) != 2 * len(linear):
        raise ValueError("the network has weights that are frozen, or shared between layers")
    return [linear[0].in_features, *(layer.out_features for layer in linear)]


def widened(network: nn.Module, widths: Sequence[int]) -> nn.Module:
    """The network with other numbers of hidden neurons."""
    made = copy.deepcopy(network)
    assert isinstance(made, nn.Sequential)
    places = [place for place, layer in enumerate(made) if isinstance(layer, nn.Linear)]
    for place, into, out in zip(places, widths, widths[1:], strict=False):
        made[place] = nn.Linear(into, out)
    return made.to(next(network.parameters()).device)


def _linear(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
