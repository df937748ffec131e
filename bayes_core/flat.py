"""An ordinary network's parameters as one flat vector, and back.

This is all that an `nn.Module` needs to become Bayesian here: no special layers, since
`torch.func.functional_call` runs it with views into a sampled vector.
"""

import hashlib
import json

import torch
from torch import Tensor, nn

Shapes = dict[str, torch.Size]


def shapes_of(network: nn.Module) -> Shapes:
    """Names and shapes of the parameters, in the order in which they lie in the flat vector."""
    return {name: parameter.shape for name, parameter in network.named_parameters()}


def flatten(network: nn.Module) -> Tensor:
    """The network's present weights, shape (T,)."""
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in network.parameters()])


def unflatten(theta: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views into `theta`, one for each parameter."""
    parts = torch.split(theta, [shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def buffers_of(network: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers (batch-norm statistics and the like): they stay personal."""
    return {name: buffer.detach().clone() for name, buffer in network.named_buffers()}


def fingerprint(network: nn.Module) -> str:
    """Equal for two networks exactly when their parameters have the same names and shapes."""
    text = json.dumps([[name, list(shape)] for name, shape in shapes_of(network).items()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
