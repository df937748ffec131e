"""The gradient of −log p at two draws of the weights at once, for any `nn.Module`.

The network is copied twice around the rows of one tensor: its parameters are views into them, so that writing a draw
there is all it takes to run the network with it. That costs a fifth of a `functional_call` for each draw, and one
pass of autograd serves both.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayes_core.flat import shapes_of, unflatten
from bayes_core.likelihoods import Likelihood

Batch = tuple[Tensor, Tensor]  # x, y


class Twins:
    """One network for each row of `thetas` (2, T); they share `buffers`, which training updates in place."""

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
        self, batches: Sequence[Batch], scale: Tensor, likelihood: Likelihood
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """−log p of each twin's own batch, added up; and `scale` times its gradient by every parameter of both."""
        with torch.enable_grad():
            values = [
                likelihood(network(x), y) for network, (x, y) in zip(self.networks, batches, strict=True)
            ]
            gradients = torch.autograd.grad(
                values, self.leaves, [scale] * len(values), allow_unused=True, materialize_grads=True
            )
        return values[0].detach() + values[1].detach(), gradients
