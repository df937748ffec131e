"""How a distribution travels: one named array for each row, as it is or in 16 bits. The first stage on both sides.

`float32` sends every bit. With `bfloat16` or `float16` half of them, and rounding must neither stop nor bend the run:

- A client sends not where its w_i is but how far it went from what it received, δ = w_i − ŵ. A small move keeps its
  digits; as a part of w_i it would be rounded away (at ρ = −2.5, bfloat16 knows steps of 0.016 only).
- The server adds δ to its own w, in float32, not to the rounded ŵ that it sent. So what rounding hides from the clients
  is not lost but kept until it is large enough to be seen, and clients that stand still leave w as it is, bit for
  bit, whatever β.
- ρ is sent as its distance from rho-init and λ as its logit: both are near 0 then, where floating point is fine.

A client of the spike-and-slab family leaves out μ and ρ of the weights that it has switched off, λ_i < `OFF`, when that
takes fewer bytes; the server's own take their place. What is lost is Σ λ_i·KL(N_i ‖ N_w) over these weights.

Plain weights beside a distribution over the others (a tensor of one row) travel as FedAvg's do. A tensor that is no
distribution (a method may send such) travels as it is, in float32, under the one name `VALUES`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from bayes_core.families import Family, Point
from fedbayes.protocol.npy import array_of, numbers_of

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
OFF = 0.02
KEPT = "kept"  # which weights' μ and ρ are there, one bit each
VALUES = "values"  # of a tensor that is no distribution
Arrays = dict[str, NDArray[Any]]


class Wire:
    """Both directions of one family in one format, one of `FORMATS`."""

    def __init__(self, family: Family, name: str = "float32", rho_init: float = 0.0) -> None:
        self.family = family
        self.format = FORMATS[name]
        self.origin = torch.tensor([[rho_init if row == "rho" else 0.0] for row in family.rows])
        self.beside = Wire(Point(), name) if family.uncertain else self  # for plain weights

    def _of(self, v: Tensor) -> "Wire":
        return self.beside if len(v) == 1 else self

    @property
    def exact(self) -> bool:
        return self.format == torch.float32

    def encode(self, v: Tensor) -> Arrays:
        """The server's distribution, for its clients."""
        return encode(v if self.exact else self._coordinates(v), self.family.rows, self.format)

    def decode(self, arrays: Mapping[str, NDArray[Any]]) -> Tensor:
        """What a client receives; ValueError says in words what does not fit."""
        v = decode(arrays, self.family.rows, self.format)
        return v if self.exact else self.family.constrain(v + self.origin)

    def encode_upload(self, w: Tensor, received: Tensor) -> Arrays:
        """A client's w_i, which started at what it received."""
        if self.exact:
            return encode(w, self.family.rows)
        arrays = encode(self._coordinates(w) - self._coordinates(received), self.family.rows, self.format)
        if self.family.gated:
            kept = w[2].cpu().numpy() >= OFF
            sparse = {**arrays, "mu": arrays["mu"][kept], "rho": arrays["rho"][kept], KEPT: np.packbits(kept)}
            return min(arrays, sparse, key=_size)
        return arrays

    def decode_upload(self, arrays: Mapping[str, NDArray[Any]], base: Tensor) -> Tensor:
        """w_i again, given the server's distribution that the client was sent; ValueError as above."""
        if self.exact:
            return decode(arrays, self.family.rows)
        if self.family.gated and sorted(arrays) == sorted((*self.family.rows, KEPT)):
            arrays = _dense(arrays)
        moved = decode(arrays, self.family.rows, self.format)
        if moved.shape != base.shape:
            raise ValueError(f"shape {tuple(moved.shape)} instead of {tuple(base.shape)}")
        return self.family.constrain(self.family.unconstrain(base) + moved)

    def _coordinates(self, v: Tensor) -> Tensor:
        return self.family.unconstrain(v.cpu()) - self.origin

    def send(self, v: Tensor, plain: bool = False) -> ArrayRecord:
        """A record for clients: of a distribution, or of a `plain` tensor."""
        return record_of({VALUES: _plain(v)} if plain else self._of(v).encode(v))

    def receive(self, record: ArrayRecord) -> Tensor:
        """The reverse, at a client."""
        arrays = {name: numbers_of(array) for name, array in record.items()}
        if set(arrays) == {VALUES}:
            return torch.from_numpy(arrays[VALUES].copy())
        return (self.beside if set(arrays) == set(self.beside.family.rows) else self).decode(arrays)

    def leave(self, upload: Tensor, base: Tensor | None) -> ArrayRecord:
        """A client's upload as a record; `base` is what it is a change of, None for a tensor that stands alone."""
        if base is None:
            return record_of({VALUES: _plain(upload)})
        return record_of(self._of(base).encode_upload(upload, base))

    def arrive(self, record: ArrayRecord, base: Tensor | None, shape: Sequence[int]) -> Tensor:
        """The upload again, at the server, or ValueError in words: it comes from another machine."""
        arrays = {name: numbers_of(array) for name, array in record.items()}
        if base is not None:
            upload = self._of(base).decode_upload(arrays, base)
        elif set(arrays) != {VALUES} or arrays[VALUES].dtype != np.float32:
            raise ValueError(f"rows {sorted(arrays)} instead of {VALUES} in float32")
        else:
            upload = torch.from_numpy(arrays[VALUES].copy())
        if tuple(upload.shape) != tuple(shape):
            raise ValueError(f"shape {tuple(upload.shape)} instead of {tuple(shape)}")
        return upload


def record_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: array_of(array) for name, array in arrays.items()})


def _plain(v: Tensor) -> NDArray[Any]:
    return v.detach().cpu().float().contiguous().numpy()


def encode(v: Tensor, rows: Sequence[str], format: torch.dtype = torch.float32) -> Arrays:
    """Row name → array (of the same memory, where `v` is float32 on the CPU); bfloat16 as its bits."""
    v = v.detach().to("cpu", format)
    v = v.view(torch.uint16) if format == torch.bfloat16 else v
    return {name: row.numpy() for name, row in zip(rows, v, strict=True)}


def decode(
    arrays: Mapping[str, NDArray[Any]], rows: Sequence[str], format: torch.dtype = torch.float32
) -> Tensor:
    """The (rows, T) tensor in float32; ValueError says in words what does not fit."""
    if sorted(arrays) != sorted(rows):
        raise ValueError(f"rows {sorted(arrays)} instead of {sorted(rows)}")
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise ValueError(f"rows of shapes {sorted(shapes)} instead of equal lengths")
    bits = torch.uint16 if format == torch.bfloat16 else format
    if any(array.dtype.name != str(bits).removeprefix("torch.") for array in arrays.values()):
        raise ValueError(f"rows of another type than {str(bits).removeprefix('torch.')}")
    return torch.from_numpy(np.stack([arrays[name] for name in rows])).view(format).float()


def _size(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def _dense(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """A sparse upload with zeros, which say that nothing moved, where μ and ρ were left out."""
    kept, (size, *_) = arrays[KEPT], arrays["lambda"].shape
    if kept.dtype != np.uint8 or kept.shape != ((size + 7) // 8,):
        raise ValueError(f"{kept.size} bytes of {kept.dtype} that tell which of {size} weights are there")
    where = np.unpackbits(kept, count=size).astype(bool)
    dense: Arrays = {name: array for name, array in arrays.items() if name != KEPT}
    for name in ("mu", "rho"):
        if arrays[name].shape != (int(where.sum()),):
            raise ValueError(f"{arrays[name].shape} values of {name} instead of {int(where.sum())}")
        dense[name] = np.zeros(size, arrays[name].dtype)
        dense[name][where] = arrays[name]
    return dense
