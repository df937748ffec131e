"""A device "npux", made of CPU tensors, that treats the program as a GPU does.

It refuses to mix its tensors with those of the CPU (but for single numbers), takes generators of its own only, and has
no `.numpy()`. What runs on it runs on a real accelerator, as far as the program is concerned; its arithmetic is the
CPU's, so the figures are the same to the digit. It changes torch for good: use it in a process of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from fedbayes.protocol import streams

_setup_privateuseone_for_python_backend("npux")
DEVICE = torch.device("npux", 0)
COPIES = {"_to_copy", "copy_", "copy"}
INDEXING = {"index", "index_put_", "index_put"}  # a GPU takes indices from the CPU, for which they cross
CROSSING = COPIES | INDEXING
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2"}
VIEWS = {  # which no kernel is launched for
    "_reshape_alias", "_unsafe_view", "alias", "as_strided", "detach", "diagonal", "empty", "empty_like",
    "empty_strided", "expand", "lift_fresh", "movedim", "new_empty", "new_empty_strided", "permute", "reshape",
    "select", "slice", "split", "split_with_sizes", "squeeze", "t", "tensor_split", "transpose", "unbind", "unsqueeze",
    "view",
}  # fmt: skip
TREES = (tuple, list, dict)
PLAIN = {
    int,
    float,
    bool,
    type(None),
    torch.Size,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
}
_seeds: set[int] = set()  # of the generators of this device
crossings: list[str] = []  # operations for which a GPU and its host wait for each other, in their order
launches: list[str] = []  # operations that are a kernel on a GPU, in their order


class Generator(torch.Generator):
    """A generator of the device: torch has none for one made in Python."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def manual_seed(self, seed: int) -> "Generator":
        _seeds.add(seed)
        super().manual_seed(seed)
        return self


def stream(*words: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A client's random stream (fedbayes.protocol.streams), of this device where it is asked for."""
    kind = Generator if torch.device(device).type == "npux" else torch.Generator
    return kind().manual_seed(streams.seed_of(*words))


def forget_generators() -> None:
    """They are known by their seeds, which those of the CPU may have too, later."""
    _seeds.clear()


class StrictTensor(torch.Tensor):
    """A tensor of the device, around one of the CPU."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> "StrictTensor":
        made: StrictTensor = torch.Tensor._make_wrapper_subclass(
            cls, raw.shape, strides=raw.stride(), storage_offset=raw.storage_offset(), dtype=raw.dtype, device=DEVICE
        )  # fmt: skip
        made.raw = raw
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"StrictTensor({self.raw})"

    def tolist(self) -> Any:
        crossings.append("tolist")
        return self.raw.tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(function, args, kwargs or {})


class StrictMode(TorchDispatchMode):
    """Where it is on, tensors can be made on the device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As nothing is compiled here: torch's guard against that takes as long as what is guarded."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _dispatch(function, args, kwargs or {})


class Met:
    """What an operation was called with, once it was looked at."""

    def __init__(self) -> None:
        self.ours: list[StrictTensor] = []
        self.foreign: list[torch.Tensor] = []
        self.generators: list[torch.Generator] = []

    def look(self, one: Any) -> Any:
        """Its tensor of the CPU, if it is one of the device; `type` first, as torch's own `isinstance` is slow."""
        kind = type(one)
        if kind in PLAIN:
            return one
        if kind is StrictTensor:
            self.ours.append(one)
            return one.raw
        if isinstance(one, torch.Tensor):
            self.foreign.append(one)
        elif isinstance(one, torch.Generator):
            self.generators.append(one)
        return one


def _dispatch(function: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    name = function.overloadpacket.__name__
    met = Met()
    raw_args, raw_kwargs = _each(args, met.look), _each(dict(kwargs), met.look) if kwargs else {}
    ours = met.ours
    wanted = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
    if name == "is_pinned":
        return False
    _refuse_mixtures(name, met, wanted)
    if wanted is not None:
        raw_kwargs["device"] = torch.device("cpu")
    out = function(*raw_args, **raw_kwargs)
    leaves = wanted == "cpu" or (name == "copy_" and not isinstance(args[0], StrictTensor))
    arrives = bool(met.foreign) and name in CROSSING and (ours or wanted == "npux")
    masks = name in INDEXING and any(one.dtype in (torch.bool, torch.uint8) for one in _indices(args))
    if arrives or (ours and (leaves or masks or name in WAITS)):
        crossings.append(f"{name}, to it" if arrives else name)
    if (ours or wanted == "npux") and name not in VIEWS:
        launches.append(name)
    if name == "_local_scalar_dense" or leaves or not (ours or wanted == "npux"):
        return out

    def wrapped(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or isinstance(one, StrictTensor):
            return one
        for known in reversed(ours):
            if known.raw is one:  # an operation in place gives its own tensor back
                return known
        return StrictTensor(one)

    return _each(out, wrapped)


def _indices(args: Any) -> list[torch.Tensor]:
    """Of an indexing operation; a mask among them has to be counted before its result has a size."""
    return [one for one in args[1] if isinstance(one, torch.Tensor)]


def _each(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Everything in tuples, lists and dictionaries changed: torch's own pytree takes most of such a run."""
    if not isinstance(tree, TREES) or isinstance(tree, torch.Size):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _each(one, change) for key, one in tree.items()}
    found = [_each(one, change) for one in tree]
    return type(tree)(*found) if hasattr(tree, "_fields") else type(tree)(found)


def _refuse_mixtures(name: str, met: Met, wanted: str | None) -> None:
    here = bool(met.ours) or wanted == "npux"
    for generator in met.generators:
        if here != (generator.initial_seed() in _seeds):
            raise RuntimeError(f"{name}: a generator of another device than the tensor's")
    if met.ours and name not in CROSSING and any(one.dim() > 0 for one in met.foreign):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found npux:0 and cpu! ({name})"
        )


_tensor = torch.tensor


def _tensor_on(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
    made = _tensor(data, *args, **kwargs)
    return made.to(device) if device is not None and torch.device(device).type == "npux" else made


torch.tensor = _tensor_on


# What torch.autocast asks of a device, and what the CPU's does: these operations in bfloat16, all others as they are.
IN_BFLOAT16 = ("addmm", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "linear", "matmul", "mm")
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
_others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
_those = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")


def _in_bfloat16(name: str) -> Callable[..., Any]:
    function = getattr(torch.ops.aten, name).default

    def lowered(one: Any) -> Any:
        full = isinstance(one, torch.Tensor) and one.dtype == torch.float32
        return one.to(torch.bfloat16) if full else one

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return function(*_each(args, lowered), **_each(kwargs, lowered))

    return call


_others.fallback(torch.library.fallthrough_kernel)
for _name in IN_BFLOAT16:
    _those.impl(_name, _in_bfloat16(_name))
torch.npux.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
