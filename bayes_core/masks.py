"""Masks that cancel in a sum: fixed point, keystreams and arithmetic without a remainder of rounding.

Every pair of sites adds and subtracts the same keystream, and every site one of its own (Bonawitz et al. 2017,
"Practical Secure Aggregation for Privacy-Preserving Machine Learning"). Two kinds of numbers: weights as whole steps
modulo 2³² (`uint32`, shape (k,)), and figures with 64 binary places modulo 2¹²⁸ (`uint64`, shape (k, 2): low and high
words). Sums wrap around, so they are exact in every order. A seed is 32 bytes; its keystream is AES-256-CTR under a key
that HKDF-SHA256 makes of the seed and the name of what is masked.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

SEED = 32  # bytes
FEWEST = 3  # sites in a sum: of two, each knows the other
HALF = 2**31 - 1  # of the steps that a sum can take to either side
PLACES = 64  # binary ones of a wide number
LARGEST = 2.0**52  # of a wide number; 2¹¹ of them fit
ZEROS = memoryview(bytes(2**16))  # what keystreams are made of

Vector = NDArray[Any]  # of uint32, or wide


def threshold(sites: int) -> int:
    """Of so many sites, how many must be left in a sum, and how many hold a secret together: two thirds."""
    return max(FEWEST, -(-2 * sites // 3))


def places_for(sites: int, reach: float) -> int:
    """Binary places of fixed point with which so many numbers within ±reach never wrap around."""
    return math.floor(math.log2(HALF / (sites * reach)))


def to_steps(
    numbers: NDArray[Any], sites: int, reach: float, rounded: Callable[..., Any] = np.rint
) -> NDArray[np.int64]:
    """Whole steps of fixed point, the nearest or as `rounded` says; beyond ±reach the last one."""
    step = 2.0 ** places_for(sites, reach)
    most = min(HALF // sites, int(reach * step))
    scaled = np.asarray(numbers, np.float64) * step
    np.clip(rounded(scaled, out=scaled), -most, most, out=scaled)
    return scaled.astype(np.int64)


def narrow(steps: NDArray[np.int64]) -> Vector:
    """Steps modulo 2³²."""
    return steps.astype(np.uint32)


def from_narrow(total: Vector, sites: int, reach: float) -> NDArray[np.float64]:
    """The numbers that a sum of steps stands for."""
    return total.view(np.int32).astype(np.float64) * 2.0 ** -places_for(sites, reach)


def wide(numbers: Sequence[float]) -> Vector:
    """Figures modulo 2¹²⁸; what is not finite is 0, and what is beyond all sense the largest."""
    whole = (
        int(min(max(one, -LARGEST), LARGEST) * 2**PLACES) if math.isfinite(one) else 0 for one in numbers
    )
    data = b"".join((one % 2**128).to_bytes(16, "little") for one in whole)
    return np.frombuffer(data, "<u8").reshape(-1, 2).copy()


def from_wide(total: Vector) -> list[float]:
    """The figures that a sum stands for."""
    whole = (int(low) + (int(high) << 64) for low, high in total)
    return [(one - (2**128 if one >> 127 else 0)) / 2**PLACES for one in whole]


def add(total: Vector, term: Vector, sign: int = 1) -> None:
    """total ← total ± term, modulo 2³² or 2¹²⁸."""
    if total.shape != term.shape or total.dtype != term.dtype:
        raise ValueError(f"{term.shape} of {term.dtype} cannot be added to {total.shape} of {total.dtype}")
    if total.ndim == 1:
        (np.add if sign > 0 else np.subtract)(total, term, out=total)
        return
    low, high = total.T  # views
    if sign > 0:
        low += term[:, 0]
        high += term[:, 1] + (low < term[:, 0])
    else:
        high -= term[:, 1] + (low < term[:, 0])
        low -= term[:, 0]


def derive(secret: bytes, *words: str | int) -> bytes:
    """A seed from a secret, for one purpose alone."""
    info = json.dumps(["fedbayes", *words], ensure_ascii=True).encode()
    return HKDF(SHA256(), SEED, None, info).derive(secret)


def keystream(seed: bytes) -> Callable[[int], bytes]:
    """So many bytes more of AES-256-CTR under this key."""
    cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return lambda count: cipher.update(ZEROS[:count] if count <= len(ZEROS) else bytes(count))


def cover(total: Vector, seed: bytes, name: str, sign: int = 1) -> None:
    """total ← total ± the mask of this name, piece by piece: new memory costs more than the keystream."""
    stream = keystream(derive(seed, "mask", name))
    rows = len(ZEROS) // (total.itemsize * (1 if total.ndim == 1 else 2))
    for begin in range(0, len(total), rows):
        piece = total[begin : begin + rows]
        data = stream(piece.nbytes)
        add(piece, np.frombuffer(data, piece.dtype).reshape(piece.shape), sign)


def side(own: str, other: str) -> int:
    """Who of a pair adds its mask, and who takes it off."""
    return 1 if own < other else -1
