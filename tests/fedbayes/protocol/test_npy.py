"""Arrays as Flower makes and reads them, to the byte."""

import numpy as np
import pytest
from flwr.app import Array

from fedbayes.protocol.npy import array_of, numbers_of


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16", "uint8", "float64", "int64"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (0,), (), (1, 0, 2), (70_000,)])
def test_the_same_bytes_and_numbers_as_flower_s(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    ours, flowers = array_of(values), Array(values)
    assert (ours.dtype, ours.shape, ours.stype, ours.data) == (
        flowers.dtype, flowers.shape, flowers.stype, flowers.data,
    )  # fmt: skip
    found = numbers_of(flowers)
    assert found.dtype == values.dtype and found.shape == values.shape and (found == values).all()


def test_every_other_number_of_a_row() -> None:
    values = np.arange(10, dtype=np.float32)[::2]
    assert array_of(values).data == Array(values).data


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_torn_bytes_are_refused_as_flower_refuses_them(cut: int) -> None:
    torn = Array(np.arange(100, dtype=np.float32))
    torn.data = torn.data[:cut]
    with pytest.raises((ValueError, EOFError)) as ours:
        numbers_of(torn)
    with pytest.raises((ValueError, EOFError)) as flowers:
        torn.numpy()
    assert str(ours.value) == str(flowers.value)


def test_what_is_said_of_an_array_is_not_believed() -> None:
    whole = Array(np.arange(6, dtype=np.float32))
    for dtype, shape in (("uint16", (12,)), ("float32", (2, 3)), ("float32", (-1, 3)), ("no type", (6,))):
        told = Array(dtype, shape, whole.stype, whole.data)
        assert (numbers_of(told) == np.arange(6, dtype=np.float32)).all()
    with pytest.raises(TypeError, match="Unsupported serialization type"):
        numbers_of(Array("float32", (6,), "pickle", whole.data))
