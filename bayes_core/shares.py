"""Shamir's shares of a secret of 32 bytes: any `least` of them give it, fewer say nothing about it.

Polynomials modulo the Mersenne prime 2⁵²¹ − 1 ("How to share a secret", 1979); share number x, from 1 on, is the value
at x.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations

PRIME = 2**521 - 1
SIZE = 66  # bytes of a share
SECRET = 32
NONE = b"\xff" * SIZE  # what stands for a share that could not be read; no share is so large


def split(secret: bytes, count: int, least: int) -> list[bytes]:
    """Shares number 1 … count."""
    if len(secret) != SECRET or not 1 <= least <= count:
        raise ValueError(f"{least} of {count} shares of a secret of {len(secret)} bytes")
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(least - 1))]
    found = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * x + coefficient) % PRIME
        found.append(value.to_bytes(SIZE))
    return found


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as it takes, by number; ValueError where they are not of one secret."""
    numbers = tuple(sorted(shares))
    terms = (int.from_bytes(shares[x]) * weight for x, weight in zip(numbers, _weights(numbers), strict=True))
    value = sum(terms) % PRIME
    if value >= 1 << 8 * SECRET:
        raise ValueError("shares that do not belong together")
    return value.to_bytes(SECRET)


def recover(
    shares: Mapping[int, bytes], least: int, fits: Callable[[bytes], bool], tries: Iterator[int]
) -> dict[int, bytes] | None:
    """The shares that are true, where some are false: those that give a secret which `fits`, or None.

    Leaves out as few as it takes. `tries` ends when nothing more is to be tried.
    """
    for out in range(len(shares) - least + 1):
        for without in combinations(sorted(shares), out):
            if next(tries, None) is None:
                return None
            some = {x: share for x, share in shares.items() if x not in without}
            if are_one(some, least, fits):
                return some
    return None


def are_one(shares: Mapping[int, bytes], least: int, fits: Callable[[bytes], bool]) -> bool:
    """Whether all of these lie on one polynomial, of a secret that `fits`.

    Any `least` neighbours must give it: two such groups have all but one in common, and the value at 0. In the sum over
    all of them two false ones could cancel.
    """
    numbers = sorted(shares)
    groups = [numbers[begin : begin + least] for begin in range(len(numbers) - least + 1)]
    try:
        return all(fits(join({x: shares[x] for x in group})) for group in groups)
    except ValueError:
        return False


@lru_cache(256)
def _weights(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's, for the value at 0."""
    found = []
    for x in numbers:
        above = below = 1
        for other in numbers:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(found)
