"""Distributions on the wire: bit for bit, or an error in words."""

import numpy as np
import pytest
import torch

from bayes_core import Gaussian, Point, SpikeSlab, extrapolate, mean
from bayes_core.families import Family
from fedbayes.protocol.codec import OFF, Wire, decode, encode, record_of

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


# ---------------------------------------------------------------------- 16 bits

FAMILIES = [Point(), Gaussian(), SpikeSlab(), SpikeSlab(gated=False)]
HALF_STEP = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # the largest relative error of rounding to nearest


def typical(family: Family, size: int = 500, seed: int = 0) -> torch.Tensor:
    """Weights of about 0.1, σ of about 0.08, λ from 1e-6 to 1 − 1e-6."""
    generator = torch.Generator().manual_seed(seed)
    v = 0.1 * torch.randn(len(family.rows), size, generator=generator)
    v[1:2] -= 2.5
    v[2:] = (140 * v[2:]).sigmoid().clamp(1e-6, 1 - 1e-6) if getattr(family, "gated", False) else 1.0
    return v


@pytest.mark.parametrize("name", HALF_STEP)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{type(family).__name__}")
def test_sixteen_bits_are_half_the_bytes_and_near(name: str, family: Family) -> None:
    wire, v = Wire(family, name, rho_init=-2.5), typical(family)
    arrays = wire.encode(v)
    assert [array.nbytes for array in arrays.values()] == [2 * 500] * len(family.rows)
    assert {array.dtype.name for array in arrays.values()} == {{"bfloat16": "uint16"}.get(name, name)}
    got = wire.decode(arrays)
    step, smallest = HALF_STEP[name], 2.0**-25  # float16 has no relative precision below 6e-5
    assert ((got[0] - v[0]).abs() <= step * v[0].abs() + smallest).all()
    assert ((got[1:2] - v[1:2]).abs() <= step * (v[1:2] + 2.5).abs() + 1e-6).all(), "ρ counts from rho-init"
    logits, rounded = v[2:].double().logit(), got[2:].double().logit()
    inside = logits.isfinite()  # λ = 1, where the gate is off, stays 1
    assert ((rounded - logits)[inside].abs() <= step * logits[inside].abs() + 0.07).all()
    assert torch.equal(got[2:][~inside], v[2:][~inside])
    assert family.problem(got) is None


@pytest.mark.parametrize("name", HALF_STEP)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{type(family).__name__}")
@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5])
def test_where_clients_stand_still_nothing_drifts(name: str, family: Family, beta: float) -> None:
    wire, start = Wire(family, name, rho_init=-2.5), typical(family, 50)
    w = start
    for _ in range(300):
        received = wire.decode(wire.encode(w))
        uploads = [wire.decode_upload(wire.encode_upload(received, received), w) for _ in range(3)]
        w = family.after_extrapolation(extrapolate(w, mean(uploads), beta))
    assert torch.equal(w[:2], start[:2])
    torch.testing.assert_close(w[2:], start[2:], rtol=1e-4, atol=0)  # float32 λ and its logit, there and back


@pytest.mark.parametrize("name", HALF_STEP)
def test_small_moves_add_up(name: str) -> None:
    """A hundred times smaller than the steps of the format; sent as a part of w they would all be lost."""
    wire, start = Wire(Gaussian(), name, rho_init=-2.5), torch.tensor([[0.3], [-2.2]])
    move = torch.tensor([[1e-5], [-1e-5]])
    w = naive = start
    for _ in range(1000):
        received = wire.decode(wire.encode(w))
        w = extrapolate(w, wire.decode_upload(wire.encode_upload(received + move, received), w), 1.0)
        naive = wire.decode(wire.encode(wire.decode(wire.encode(naive)) + move))
    torch.testing.assert_close(w - start, 1000 * move, rtol=5e-3, atol=0)
    assert (naive - start).abs().max() < 2e-3, "the example is a hard one"


@pytest.mark.parametrize("name", HALF_STEP)
@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_clients_that_pull_somewhere_get_there(name: str, beta: float) -> None:
    wire, goal = Wire(Gaussian(), name, rho_init=-2.5), typical(Gaussian(), 2000, seed=1)
    w = torch.zeros_like(goal) + torch.tensor([[0.0], [-2.5]])
    for _ in range(400):
        received = wire.decode(wire.encode(w))
        uploads = [received + pull * (goal - received) for pull in (0.02, 0.1)]
        w = extrapolate(
            w, mean([wire.decode_upload(wire.encode_upload(u, received), w) for u in uploads]), beta
        )
    away = (w - goal).double()
    scale = (goal - wire.origin).abs().double()
    assert (away.abs() <= 2 * HALF_STEP[name] * scale + 6e-6).all(), "within a step of the format"
    assert away.mean(1).abs().max() < 0.1 * HALF_STEP[name] * scale.mean(), "and to no side"


def test_a_sparse_upload_leaves_out_what_is_off() -> None:
    family = SpikeSlab()
    wire, base = Wire(family, "bfloat16", rho_init=-2.5), typical(family, 1001)
    received = wire.decode(wire.encode(base))
    w = received + 0.01
    w[2] = torch.where(torch.arange(1001) % 5 == 0, 0.9, OFF / 2)
    sparse = wire.encode_upload(w, received)
    assert sparse["mu"].shape == sparse["rho"].shape == (201,) and sparse["lambda"].shape == (1001,)
    assert sum(array.nbytes for array in sparse.values()) == 2 * (2 * 201 + 1001) + 126, "against 6006 dense"
    got = wire.decode_upload(sparse, base)
    on = torch.arange(1001) % 5 == 0
    assert torch.equal(got[:2, ~on], base[:2, ~on]), "the server's own"
    torch.testing.assert_close(got[:2, on], base[:2, on] + 0.01, rtol=0, atol=1e-4)
    torch.testing.assert_close(got[2], w[2], rtol=0.1, atol=0)
    lost = family.kl(torch.cat([base[:2] + (w - received)[:2], got[2:]]), got)
    by_hand = (got[2].double() * Gaussian().kl_each(base[:2].double() + 0.01, base[:2].double()))[~on].sum()
    assert lost.item() == pytest.approx(by_hand.item(), rel=0.05)
    w[2] = 0.9
    assert sorted(wire.encode_upload(w, received)) == ["lambda", "mu", "rho"], "dense where that is smaller"
    assert sorted(Wire(family).encode_upload(w * 0, received)) == ["lambda", "mu", "rho"], (
        "float32 loses nothing"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kept": np.zeros(3, np.uint8)}, "3 bytes of uint8 that tell which of 9 weights"),
        ({"kept": np.zeros(2, np.int64)}, "2 bytes of int64"),
        ({"kept": np.full(2, 255, np.uint8)}, r"\(3,\) values of mu instead of 9"),
        ({"rho": np.zeros((3, 1), np.uint16)}, "values of rho instead of 3"),
        ({"mu": np.zeros(3, np.float32), "rho": np.zeros(3, np.float32)}, "another type than uint16"),
        (
            {"lambda": np.zeros(8, np.uint16), "kept": np.array([0b11100000], np.uint8)},
            r"\(3, 8\) instead of \(3, 9\)",
        ),
        ({"more": np.zeros(3, np.uint16)}, "'more'"),
    ],
)
def test_what_does_not_fit_a_sparse_upload_is_said(change: dict, words: str) -> None:
    three = np.zeros(3, np.uint16)
    whole = {
        "mu": three,
        "rho": three,
        "lambda": np.zeros(9, np.uint16),
        "kept": np.array([224, 0], np.uint8),
    }
    base = typical(SpikeSlab(), 9)
    wire = Wire(SpikeSlab(), "bfloat16")
    assert wire.decode_upload(whole, base).shape == (3, 9)
    with pytest.raises(ValueError, match=words):
        wire.decode_upload(whole | change, base)


def test_another_format_than_expected_is_said() -> None:
    with pytest.raises(ValueError, match="another type than uint16"):
        Wire(Gaussian(), "bfloat16").decode(Wire(Gaussian()).encode(torch.zeros(2, 3)))


# ---------------------------------------------------------------------- tensors that are no distributions

PLAIN = [torch.tensor([1.5, -2.0, 3.0]), torch.arange(6.0).view(2, 3), torch.tensor(7.0), torch.zeros(0, 4)]


@pytest.mark.parametrize("name", [*HALF_STEP, "float32"])
@pytest.mark.parametrize("v", PLAIN, ids=["vector", "matrix", "scalar", "empty"])
def test_plain_tensors_keep_every_bit_both_ways(name: str, v: torch.Tensor) -> None:
    wire = Wire(Gaussian(), name, rho_init=-2.5)
    down, up = wire.send(v, plain=True), wire.leave(v, None)
    assert list(down) == list(up) == ["values"]
    assert torch.equal(wire.receive(down), v) and wire.receive(down).shape == v.shape
    assert torch.equal(wire.arrive(up, None, v.shape), v)


def test_plain_tensors_travel_as_float32() -> None:
    wire = Wire(Point())
    for v in (torch.tensor([1, 2]), torch.tensor([1.0, 2.0], dtype=torch.float64), torch.ones(2, 2).T[0]):
        assert wire.receive(wire.send(v, plain=True)).dtype == torch.float32
        assert wire.send(v, plain=True)["values"].numpy().tolist() == v.tolist()


def test_what_arrives_is_a_copy_that_can_be_written() -> None:
    wire, record = Wire(Point()), Wire(Point()).leave(torch.ones(3), None)
    for tensor in (wire.arrive(record, None, (3,)), wire.receive(record)):
        tensor.zero_()
    assert record["values"].numpy().tolist() == [1.0] * 3


@pytest.mark.parametrize("name", [*HALF_STEP, "float32"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{type(family).__name__}")
def test_distributions_as_records(name: str, family: Family) -> None:
    wire, v = Wire(family, name, rho_init=-2.5), typical(family)
    received = wire.receive(wire.send(v))
    assert torch.equal(received, wire.decode(wire.encode(v)))
    back = wire.arrive(wire.leave(received, received), v, v.shape)
    torch.testing.assert_close(back, v, rtol=1e-4, atol=1e-6 if name == "float32" else 1e-5)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(3, np.float64), r"rows \['values'\] instead of values in float32"),
        (np.zeros(3, np.float16), "instead of values in float32"),
        (np.zeros(3, np.int32), "instead of values in float32"),
        (np.zeros(4, np.float32), r"shape \(4,\) instead of \(3,\)"),
        (np.zeros((3, 1), np.float32), r"shape \(3, 1\) instead of \(3,\)"),
        (np.zeros((), np.float32), r"shape \(\) instead of \(3,\)"),
    ],
)
def test_a_plain_upload_that_does_not_fit_is_said(array: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Wire(Gaussian()).arrive(record_of({"values": array}), None, (3,))


def test_one_kind_is_not_taken_for_the_other() -> None:
    wire, w = Wire(Gaussian()), torch.zeros(2, 3)
    with pytest.raises(ValueError, match=r"rows \['mu', 'rho'\] instead of values"):
        wire.arrive(wire.leave(w, w), None, (2, 3))
    with pytest.raises(ValueError, match=r"rows \['values'\] instead of \['mu', 'rho'\]"):
        wire.arrive(wire.leave(w, None), w, (2, 3))
    with pytest.raises(ValueError, match=r"shape \(2, 3\) instead of \(2, 4\)"):
        wire.arrive(wire.leave(w, w), torch.zeros(2, 4), (2, 4))
