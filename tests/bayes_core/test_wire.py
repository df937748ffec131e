"""Distributions on the wire: bit for bit, or an error in words."""

import numpy as np
import pytest
import torch

from bayes_core.wire import decode, encode

ROWS = ("mu", "rho")


def test_round_trip_keeps_every_bit() -> None:
    v = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    arrays = encode(v, ROWS)
    assert list(arrays) == ["mu", "rho"] and arrays["rho"].dtype == np.float32
    assert arrays["rho"].tolist() == v[1].tolist()
    shuffled = {name: arrays[name] for name in reversed(ROWS)}  # rows go by name, not by order
    for received in (arrays, shuffled):
        assert torch.equal(decode(received, ROWS), v)


def test_what_is_decoded_is_a_copy() -> None:
    arrays = {"mu": np.zeros(2, np.float32), "rho": np.ones(2, np.float32)}
    decode(arrays, ROWS).zero_()
    assert arrays["rho"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"mu": np.zeros(3, np.float32)}, r"\['mu'\] instead of \['mu', 'rho'\]"),
        ({name: np.zeros(3, np.float32) for name in ("mu", "rho", "more")}, "'more'"),
        ({"mu": np.zeros(3, np.float32), "rho": np.zeros(4, np.float32)}, r"shapes \[\(3,\), \(4,\)\]"),
        ({name: np.zeros((3, 1), np.float32) for name in ROWS}, r"shapes \[\(3, 1\)\]"),
        ({name: np.zeros(3) for name in ROWS}, "another type than float32"),
        ({"mu": np.zeros(3, np.float32), "rho": np.zeros(3, np.int64)}, "another type than float32"),
    ],
)
def test_what_does_not_fit_is_said(arrays: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(arrays, ROWS)


def test_as_many_names_as_rows() -> None:
    with pytest.raises(ValueError):
        encode(torch.zeros(2, 3), ("theta",))
