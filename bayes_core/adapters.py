"""Low-rank adapters (LoRA: Hu et al., 2022): of a trained network only small products beside its linear layers learn.

    W·x + b   →   W·x + b + up·(down·x),   down (rank, in), up (out, rank)

W and b are frozen, so they have no distribution, are not sent and not stored; `down` and `up` are ordinary parameters,
which every method here trains as it would any others. `up` begins at 0, so that the network begins as it was trained.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class LowRank(nn.Module):
    """A linear layer as it was, and beside it what is learned."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        smaller = min(layer.in_features, layer.out_features)
        if not 1 <= rank <= smaller:
            raise ValueError(
                f"An adapter of a layer of {layer.in_features}×{layer.out_features} has a rank from 1 to {smaller}, "
                f"not {rank}."
            )
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.empty(rank, layer.in_features))
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as PyTorch begins a linear layer

    def forward(self, x: Tensor) -> Tensor:
        learned: Tensor = linear(linear(x, self.down), self.up)
        fixed: Tensor = self.layer(x)
        return fixed + learned

    @property
    def weight(self) -> Tensor:
        """The one matrix that does the same; some of PyTorch's modules read it instead of calling the layer."""
        return self.layer.weight + self.up @ self.down

    @property
    def bias(self) -> Tensor | None:
        return self.layer.bias


def low_rank(network: nn.Module, rank: int, learn: Sequence[str] = ()) -> nn.Module:
    """`network`, frozen, with an adapter on every linear layer; its input is changed.

    Args:
        network: any module, with the weights that it is to begin from.
        rank: of the adapters; a layer of in×out weights then learns rank·(in + out) numbers.
        learn: beginnings of the names of parameters that are learned whole, as those of a new head.

    Returns:
        The same module, or its adapter where it is a single linear layer.
    """
    names = [name for name, _ in network.named_parameters()]
    unknown = [begin for begin in learn if not any(name.startswith(begin) for name in names)]
    if unknown:
        raise ValueError(f'No parameter begins with "{unknown[0]}"; there are {", ".join(names)}.')
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.startswith(tuple(learn)))
    # attention's own projection is of another type, and is read without being called
    layers = [
        (name, layer)
        for name, layer in network.named_modules(remove_duplicate=False)
        if type(layer) is nn.Linear and not any(parameter.requires_grad for parameter in layer.parameters())
    ]
    # one for a layer that stands in two places
    adapters = {layer: LowRank(layer, rank) for _, layer in layers}
    for name, layer in layers:
        parent, _, child = name.rpartition(".")
        if not child:
            return adapters[layer]
        setattr(network.get_submodule(parent), child, adapters[layer])
    return network
