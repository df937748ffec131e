"""Ordinary training of ordinary weights: the client's half of FedAvg, FedProx and `local`."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayes_core.flat import buffers_of, shapes_of
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.inference.update import minibatches, nll_gradient
from bayes_core.likelihoods import Likelihood, categorical


@dataclass(frozen=True)
class Weights:
    """A weight vector (1, T) with its optimiser's state and the network's buffers."""

    v: Tensor
    optimizer: OptimizerState
    buffers: dict[str, Tensor]

    @classmethod
    def start(cls, v: Tensor, network: nn.Module, optimizer: str) -> "Weights":
        return cls(v.clone(), OptimizerState.blank(v, optimizer), buffers_of(network))


def train_weights(
    network: nn.Module,
    start: Weights,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int,
    optimizer: str,
    lr: float,
    generator: torch.Generator,
    proximal: float = 0.0,
    adam_beta2: float = 0.999,
    likelihood: Likelihood = categorical,
) -> tuple[Weights, float]:
    """`steps` minibatch steps on the mean loss, plus (proximal/2)·‖θ − θ_start‖² (FedProx); also the loss."""
    n = len(x)
    b = min(batch_size, n)
    shapes = shapes_of(network)
    buffers = {name: buffer.clone() for name, buffer in start.buffers.items()}
    v = start.v.clone()
    optimiser = Optimiser(v, start.optimizer, optimizer, lr, beta2=adam_beta2)
    loss = torch.zeros((), device=v.device)

    network.train()
    for batch in minibatches(n, b, steps, generator):
        value, gradient = nll_gradient(network, shapes, v[0], buffers, x[batch], y[batch], likelihood)
        gradient.div_(b)
        if proximal:
            gradient.add_(v[0] - start.v[0], alpha=proximal)
        optimiser.step(gradient[None])
        loss += value / b
    return replace(start, v=v, optimizer=optimiser.state(), buffers=buffers), float(loss) / steps
