"""An ordinary network's parameters as one flat vector, and back.

This is all that an `nn.Module` needs to become Bayesian here: no special layers, since
`torch.func.functional_call` runs it with views into a sampled vector. Parameters without `requires_grad` are
constants of the network: neither in the vector nor sampled nor sent, and the same everywhere.
"""

import copy
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Shapes = dict[str, torch.Size]
BUFFER = "buffer."  # what the stored names of buffers begin with …
COMPLEX = BUFFER + "as_real:"  # … and those of complex ones, which not every file format has


def shapes_of(network: nn.Module) -> Shapes:
    """Names and shapes of the trained parameters, in the order in which they lie in the flat vector."""
    return {name: parameter.shape for name, parameter in trained(network).items()}


def trained(network: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are not frozen, by name; one that several layers share once, under its first name."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def frozen(network: nn.Module) -> dict[str, nn.Parameter]:
    """The other ones."""
    return {name: parameter for name, parameter in network.named_parameters() if not parameter.requires_grad}


def flatten(network: nn.Module) -> Tensor:
    """The network's present weights, shape (T,)."""
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in trained(network).values()])


def unflatten(theta: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views into `theta`, one for each parameter."""
    parts = torch.split(theta, [shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def around(network: nn.Module, theta: Tensor, buffers: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the network whose trained parameters are views into `theta`, and whose buffers are those given."""
    views = unflatten(theta, shapes_of(network))
    leaves = {id(old): nn.Parameter(views[name]) for name, old in trained(network).items()}
    kept = {id(old): buffers[name] for name, old in network.named_buffers() if name in buffers}
    constants = {id(old): old for old in frozen(network).values()}  # one for all copies
    return copy.deepcopy(network, leaves | kept | constants)  # in place of the old ones


def state_dict_of(network: nn.Module) -> dict[str, Tensor]:
    """Copies of what PyTorch's `load_state_dict` takes: a shared weight under each of its names."""
    held = network.state_dict().items()
    return {name: value.detach().clone() for name, value in held if isinstance(value, Tensor)}


def buffers_of(network: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers (batch-norm statistics and the like): they stay personal."""
    return {name: buffer.detach().clone() for name, buffer in network.named_buffers()}


def with_buffers(tensors: dict[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Named tensors with a network's buffers among them, as buffer.NAME; of complex ones as pairs of numbers."""
    return tensors | {
        (COMPLEX if buffer.is_complex() else BUFFER) + name: _as_real(buffer)
        for name, buffer in buffers.items()
    }


def buffers_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The network's buffers among named tensors, by their own names."""
    found = {}
    for name, value in tensors.items():
        if name.startswith(COMPLEX):
            found[name.removeprefix(COMPLEX)] = torch.view_as_complex(value)
        elif name.startswith(BUFFER):
            found[name.removeprefix(BUFFER)] = value
    return found


def without_buffers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The other ones: what training moves. A buffer may hold anything, be it −inf, as a causal mask does."""
    return {name: value for name, value in tensors.items() if not name.startswith(BUFFER)}


def _as_real(buffer: Tensor) -> Tensor:
    return torch.view_as_real(buffer.resolve_conj()) if buffer.is_complex() else buffer


def fingerprint(network: nn.Module) -> str:
    """Equal for two networks exactly when their parameters have the same names and shapes, and frozen ones the same
    values too: nobody sends them."""
    said: list[list[Any]] = [[name, list(shape)] for name, shape in shapes_of(network).items()]
    for name, parameter in frozen(network).items():
        said.append([name, list(parameter.shape), str(parameter.dtype), _hash(parameter)])
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def _hash(values: Tensor) -> str:
    numbers = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(numbers.numpy().data).hexdigest()


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

    @classmethod
    def at_head(cls, network: nn.Module, head: str = "") -> "Split":
        """What stays: parameters whose names begin with `head`, by default those of the last `nn.Linear`."""
        names = {id(parameter): name for name, parameter in trained(network).items()}
        if head:
            stays = {name for name in names.values() if f"{name}.".startswith(f"{head.rstrip('.')}.")}
        else:
            linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
            each = [{names[id(p)] for p in one.parameters() if id(p) in names} for one in linear]
            stays = next((found for found in reversed(each) if found), set())
        if not stays or len(stays) == len(names):
            what = f'"{head}"' if head else "the last nn.Linear"
            part = "the whole" if stays else "no part"
            known = ", ".join(names.values())
            raise ValueError(f"head: {what} is {part} of the network; its parameters are {known}.")
        return cls.of(shapes_of(network), stays)

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

    def named(self, shared: Tensor, own: Tensor) -> dict[str, Tensor]:
        """Every parameter by its name, as views into the shared (S,) and a client's own (T − S,)."""
        return self.named_shared(shared) | unflatten(own, self.own_shapes)

    def named_shared(self, shared: Tensor) -> dict[str, Tensor]:
        """The shared ones by their names, as views."""
        return unflatten(shared, {k: v for k, v in self.shapes.items() if k not in self.stays})

    @property
    def shared_names(self) -> list[str]:
        """Of those that are shared, in their order."""
        return [name for name in self.shapes if name not in self.stays]

    @property
    def own_shapes(self) -> Shapes:
        """Of those that stay."""
        return {k: v for k, v in self.shapes.items() if k in self.stays}

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
