"""Flower's arrays are numpy's files in memory: a header, then the numbers. Made and read here in one copy, or none.

Flower's own way goes through `np.save` and `np.load`, which copy everything three times and parse the header as
Python: half a millisecond for a distribution of 80 000 weights. What is written here is the same to the byte, and what
is not exactly that is read Flower's way, with numpy's own checks.
"""

from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from numpy.typing import NDArray

STYPE = "numpy.ndarray"
TYPES = ("float32", "float16", "uint8", "uint16", "uint32", "uint64")  # that travel


@lru_cache(256)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    out = BytesIO()
    described = {"descr": dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    write_array_header_1_0(out, described)
    return out.getvalue()


def array_of(values: NDArray[Any]) -> Array:
    """`Array(values)`, to the byte."""
    dtype, shape = str(values.dtype), tuple(values.shape)
    if dtype not in TYPES or not values.flags.c_contiguous:
        return Array(values)
    return Array(dtype, shape, STYPE, b"".join((header(dtype, shape), values.data)))


def numbers_of(array: Array) -> NDArray[Any]:
    """`array.numpy()`; where it can be, of the array's own memory, which is not to be written to."""
    dtype, shape = array.dtype, tuple(array.shape)
    if array.stype == STYPE and dtype in TYPES and all(length >= 0 for length in shape):
        start = header(dtype, shape)
        whole = len(start) + prod(shape) * np.dtype(dtype).itemsize
        if len(array.data) == whole and array.data.startswith(start):
            return np.frombuffer(array.data, dtype, offset=len(start)).reshape(shape)
    return array.numpy()
