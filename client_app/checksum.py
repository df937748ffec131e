"""Checksums of tensors: they find damage, and are no signatures.

8192 words of 64 bits at a time are added to as many sums, each of which takes a one-to-one step before that mixes its
bits: one changed word always changes its sum, and two hide each other by chance alone, be they signs. SHA-256 of the
sums, the names and the lengths is the rest. A CRC-32, which files of earlier versions have, takes twice as long.
"""

import hashlib
import zlib
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from client_app.tensor_file import content

WIDTH = 8192
FACTOR, HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)  # the factor is odd, so that nothing is lost


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of all tensors on the CPU with their names."""
    sums, mixed = np.zeros((2, WIDTH), dtype=np.uint64)
    rest = hashlib.sha256()
    for name in sorted(tensors):
        found = content(tensors[name])
        words = np.frombuffer(found, dtype=np.uint64, count=len(found) // 8)
        for begin in range(0, len(words), WIDTH):
            np.right_shift(sums, HALF, out=mixed)
            np.bitwise_xor(sums, mixed, out=sums)
            np.multiply(sums, FACTOR, out=sums)
            row = words[begin : begin + WIDTH]
            np.add(sums[: len(row)], row, out=sums[: len(row)])
        rest.update(f"{len(name)} {name} {len(found)} ".encode() + bytes(found[len(words) * 8 :]))
    rest.update(sums.data)
    return rest.hexdigest()[:32]


def fits(tensors: Mapping[str, Tensor], found: str) -> bool:
    """Whether a file's checksum, which may be an earlier version's, is that of its tensors."""
    return found == (crc(tensors) if len(found) == 8 else checksum(tensors))


def crc(tensors: Mapping[str, Tensor]) -> str:
    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(content(tensors[name]), zlib.crc32(name.encode(), found))
    return f"{found:08x}"
