"""An ordinary network's parameters as one flat vector, and back.

This is all that an `nn.Module` needs to become Bayesian here: no special layers, since
`torch.func.functional_call` runs it with views into a sampled vector.
"""

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Shapes = dict[str, torch.Size]
BUFFER = "buffer."  # what the stored names of buffers begin with


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


def with_buffers(tensors: dict[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors with a network's buffers among them, as buffer.NAME."""
    return tensors | {BUFFER + name: buffer for name, buffer in buffers.items()}


def buffers_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's buffers among named tensors, by their own names."""
    return {name.removeprefix(BUFFER): value for name, value in tensors.items() if name.startswith(BUFFER)}


def fingerprint(network: nn.Module) -> str:
    """Equal for two networks exactly when their parameters have the same names and shapes."""
    text = json.dumps([[name, list(shape)] for name, shape in shapes_of(network).items()])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Split:
    """Body and head: which of a network's parameters are shared, and which are a client's own."""

    shapes: Shapes
    stays: frozenset[str]

    @classmethod
    def of(cls, shapes: Shapes, stays: Collection[str]) -> "Split":
        """For parameters of these shapes, of which those named in `stays` are a client's own."""
        if unknown := sorted(set(stays) - set(shapes)):
            raise ValueError(f"No parameter {', '.join(unknown)}; there are {', '.join(shapes)}.")
        return cls(shapes, frozenset(stays))

    def shared(self, v: Tensor) -> Tensor:
        """The columns (rows, S) of `v` (rows, T) that are shared."""
        return self._columns(v, stays=False)

    def own(self, v: Tensor) -> Tensor:
        """The columns (rows, T − S) that stay."""
        return self._columns(v, stays=True)

    def join(self, shared: Tensor, own: Tensor) -> Tensor:
        """The whole (rows, T) again."""
        theirs, ours = (
            iter(torch.split(v, [size for name, size in self._sizes() if (name in self.stays) is stays], -1))
            for v, stays in ((shared, False), (own, True))
        )
        return torch.cat([next(ours if name in self.stays else theirs) for name, _ in self._sizes()], -1)

    def _columns(self, v: Tensor, stays: bool) -> Tensor:
        parts = torch.split(v, [size for _, size in self._sizes()], -1)
        named = zip(self.shapes, parts, strict=True)
        return torch.cat([v[..., :0], *(part for name, part in named if (name in self.stays) is stays)], -1)

    def _sizes(self) -> list[tuple[str, int]]:
        return [(name, shape.numel()) for name, shape in self.shapes.items()]


def statistics_of(network: nn.Module) -> Shapes:
    """Names and shapes of the buffers that can be averaged over clients: real numbers, finite from the start on.

    Batch norm's running mean and variance are such; a causal mask, a counter or a complex rotation is not.
    """
    return {
        name: buffer.shape
        for name, buffer in network.named_buffers()
        if buffer.is_floating_point() and bool(buffer.isfinite().all())
    }


def flat_statistics(buffers: Mapping[str, Tensor], shapes: Shapes) -> Tensor:
    """These buffers as one vector (B,)."""
    return torch.cat([buffers[name].detach().reshape(-1).float() for name in shapes])


def named_statistics(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Back from `flat_statistics`: views into the vector."""
    return unflatten(flat, shapes)
