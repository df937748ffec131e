"""Masks cancel exactly, shares give a secret from enough of them, and fixed point says what it loses."""

import itertools
import math
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from bayes_core import masks, shares


@pytest.mark.parametrize(
    ("sites", "least"), [(3, 3), (4, 3), (5, 4), (6, 4), (7, 5), (9, 6), (10, 7), (100, 67)]
)
def test_two_thirds_and_at_least_three(sites: int, least: int) -> None:
    assert masks.threshold(sites) == least


@pytest.mark.parametrize(("sites", "places"), [(3, 27), (10, 25), (100, 22), (1000, 19)])
def test_so_many_places_have_the_numbers_of_a_sum(sites: int, places: int) -> None:
    assert masks.places_for(sites, 4.0) == places
    assert sites * 4 * 2**places <= masks.HALF < sites * 4 * 2 ** (places + 1)


def test_fixed_point_is_the_nearest_step_and_ends_at_its_reach() -> None:
    step = 2.0**-25
    found = masks.to_steps(np.array([0.0, step, 0.4 * step, -0.6 * step, 1.0, -3.99, 1e9, -1e9]), 10, 4.0)
    most = 4 * 2**25
    assert found.tolist() == [0, 1, 0, -1, 2**25, round(-3.99 * 2**25), most, -most]
    back = masks.from_narrow(masks.narrow(found), 10, 4.0)
    assert back[:6].tolist() == [0, step, 0, -step, 1.0, round(-3.99 * 2**25) * step]
    assert back[6:].tolist() == [4.0, -4.0]


def test_a_sum_of_the_largest_does_not_wrap_around() -> None:
    for sign in (1, -1):
        total = np.zeros(1, np.uint32)
        for _ in range(10):
            masks.add(total, masks.narrow(masks.to_steps(np.array([sign * 1e9]), 10, 4.0)))
        assert masks.from_narrow(total, 10, 4.0)[0] == sign * 40


def test_figures_keep_all_digits_of_a_float() -> None:
    numbers = [0.0, 1.0, -1.0, 1234.56789, -1e-6, 3e9, 1e-15]
    assert masks.from_wide(masks.wide(numbers)) == pytest.approx(numbers, rel=1e-15, abs=2.0**-64)
    assert masks.from_wide(masks.wide([math.nan, math.inf, 1e300])) == [0, 0, masks.LARGEST]
    total, exact = masks.wide([0.0] * 1000), np.zeros(1000)
    for seed in range(5):
        one = np.random.default_rng(seed).normal(size=1000) * 1e6
        masks.add(total, masks.wide(one.tolist()))
        exact += one
    assert masks.from_wide(total) == pytest.approx(exact.tolist(), abs=1e-9)  # of 53 bits of 1e6


@pytest.mark.parametrize("figures", [False, True])
def test_adding_and_taking_off_leaves_every_bit(figures: bool) -> None:
    shape = (10_000, 2) if figures else (10_000,)
    kind = np.uint64 if figures else np.uint32
    value = np.frombuffer(os.urandom(10_000 * (16 if figures else 4)), kind).reshape(shape)
    seed, term, total = os.urandom(32), np.zeros_like(value), value.copy()
    masks.cover(term, seed, "upload")
    masks.cover(total, seed, "upload")
    whole = [int(a) + (int(b) << 64) for a, b in value.reshape(-1, 2)] if figures else value.tolist()
    more = [int(a) + (int(b) << 64) for a, b in term.reshape(-1, 2)] if figures else term.tolist()
    size = 2**128 if figures else 2**32
    expected = [(a + b) % size for a, b in zip(whole, more, strict=True)]
    assert ([int(a) + (int(b) << 64) for a, b in total] if figures else total.tolist()) == expected
    masks.cover(total, seed, "upload", -1)
    assert (total == value).all()


def test_a_keystream_is_aes_256_in_counter_mode() -> None:
    seed, mask = bytes(range(32)), np.zeros(100_000, np.uint32)  # of several pieces
    key = masks.derive(seed, "mask", "upload")
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    blocks = cipher.update(b"".join(count.to_bytes(16) for count in range(25_000)))
    masks.cover(mask, seed, "upload")
    assert mask.tobytes() == blocks


def test_every_word_gives_another_mask() -> None:
    secret = os.urandom(32)
    words = itertools.product(("uuid", "other"), (1, 2), (1, 2))
    seeds = [masks.derive(secret, "pair", uuid, number, attempt, "a", "b") for uuid, number, attempt in words]
    assert len(seeds) == 8 == len(set(seeds))
    streams = []
    for seed, part in itertools.product(seeds, ("upload", "measures")):
        streams.append(np.zeros(1000, np.uint32))
        masks.cover(streams[-1], seed, part)
    for one, other in itertools.combinations(streams, 2):
        assert (one == other).sum() <= 1  # of 1000 numbers of 32 bits


def test_a_secret_from_enough_shares_and_not_from_fewer() -> None:
    secret = os.urandom(32)
    found = dict(enumerate(shares.split(secret, 6, 4), 1))
    for some in itertools.combinations(found, 4):
        assert shares.join({number: found[number] for number in some}) == secret
    assert shares.join(found) == secret
    with pytest.raises(ValueError, match="do not belong together"):
        shares.join({number: found[number] for number in (1, 2, 3)})


def test_fewer_shares_fit_every_secret() -> None:
    """Three shares of a secret that takes four, and any fourth point: some polynomial goes through them."""
    found = dict(enumerate(shares.split(bytes(32), 4, 4), 1))
    other = os.urandom(32)
    # the share number 4 that would make it `other`: solve at x = 4 through x = 0
    points = {0: int.from_bytes(other), **{x: int.from_bytes(found[x]) for x in (1, 2, 3)}}
    value = 0
    for x, y in points.items():
        above = math.prod(4 - z for z in points if z != x)
        below = math.prod(x - z for z in points if z != x)
        value += y * above * pow(below, -1, shares.PRIME)
    forged = {**found, 4: (value % shares.PRIME).to_bytes(shares.SIZE)}
    assert shares.join(forged) == other


def test_false_shares_are_left_out_as_long_as_enough_are_true() -> None:
    secret = bytes(range(32))
    told = dict(enumerate(shares.split(secret, 7, 5), 1))
    for false in ((), (2,), (2, 6)):
        some = told | {x: told[x][:-1] + bytes([told[x][-1] ^ 1]) for x in false}
        true = shares.recover(some, 5, secret.__eq__, iter(range(100)))
        assert true is not None and set(some) - set(true) == set(false) and shares.join(true) == secret
    worse = told | {x: bytes(shares.SIZE) for x in (1, 2, 3)}
    assert shares.recover(worse, 5, secret.__eq__, iter(range(100))) is None
    assert shares.recover(told | {2: bytes(shares.SIZE)}, 5, secret.__eq__, iter(range(2))) is None, "no more"
