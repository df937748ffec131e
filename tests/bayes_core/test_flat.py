"""Networks as flat vectors, and back."""

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.func import functional_call

from bayes_core.flat import (
    Split,
    around,
    buffers_in,
    buffers_of,
    fingerprint,
    flatten,
    shapes_of,
    state_dict_of,
    unflatten,
    with_buffers,
    without_buffers,
)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def test_round_trip() -> None:
    one = network()
    theta = flatten(one)
    assert theta.shape == (2 * 9 + 2 + 2 + 2 + 8 * 3 + 3,)
    parts = unflatten(theta, shapes_of(one))
    assert list(parts) == [name for name, _ in one.named_parameters()]
    for name, parameter in one.named_parameters():
        assert torch.equal(parts[name], parameter)
    other = functional_call(one.eval(), unflatten(2 * theta, shapes_of(one)), (torch.ones(1, 1, 4, 4),))
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.mul_(2)
    assert torch.equal(other, one(torch.ones(1, 1, 4, 4)))


def test_parts_are_views_and_the_vector_is_a_copy() -> None:
    one = network()
    theta = flatten(one)
    before = one[3].bias.detach().clone()
    theta[-3:] = torch.tensor([7.0, 8.0, 9.0])
    parts = unflatten(theta, shapes_of(one))
    assert parts["3.bias"].tolist() == [7.0, 8.0, 9.0]
    parts["0.weight"].zero_()
    assert not theta[:18].any() and theta[18:].any()
    assert torch.equal(one[3].bias, before)


def test_a_shared_weight_lies_there_once() -> None:
    one = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    one[1].weight = one[0].weight
    assert flatten(one).shape == (9 + 3 + 3,)


def test_buffers_are_copies() -> None:
    one = network()
    buffers = buffers_of(one)
    assert set(buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    buffers["1.running_mean"].add_(1)
    assert not one[1].running_mean.any()


def test_fingerprint_is_of_names_and_shapes_alone() -> None:
    def linear(inputs: int, outputs: int, name: str = "layer", bias: bool = False) -> nn.Module:
        return nn.ModuleDict({name: nn.Linear(inputs, outputs, bias)})

    assert fingerprint(linear(3, 2)) == fingerprint(linear(3, 2))  # other weights, same network
    different = [linear(3, 2), linear(2, 3), linear(3, 2, "other"), linear(3, 2, bias=True)]
    assert len({fingerprint(each) for each in different}) == 4


def test_buffers_go_among_other_tensors_and_come_out_again() -> None:
    mean = torch.ones(2)
    stored = with_buffers({"q": torch.zeros(1)}, {"norm.mean": mean})
    assert list(stored) == ["q", "buffer.norm.mean"]
    assert buffers_in(stored) == {"norm.mean": mean} and buffers_in({"q": mean}) == {}


def test_body_and_head_by_hand() -> None:
    shapes = {"body.weight": torch.Size([2, 2]), "head": torch.Size([3]), "body.bias": torch.Size([1])}
    split = Split.of(shapes, ["head"])
    v = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [10, 11, 12, 13, 14, 15, 16, 17]])
    assert split.shared(v).tolist() == [[0, 1, 2, 3, 7], [10, 11, 12, 13, 17]]
    assert split.own(v).tolist() == [[4, 5, 6], [14, 15, 16]]
    assert torch.equal(split.join(split.shared(v), split.own(v)), v)
    assert torch.equal(split.join(-split.shared(v), split.own(v))[0].abs(), v[0])
    assert split.join(-split.shared(v), split.own(v))[0].tolist() == [0, -1, -2, -3, 4, 5, 6, -7]


@pytest.mark.parametrize("stays", [[], ["a", "b"]])
def test_all_or_nothing_may_be_shared(stays: list[str]) -> None:
    split, v = Split.of({"a": torch.Size([2]), "b": torch.Size([1])}, stays), torch.arange(6.0).view(2, 3)
    shared, own = split.shared(v), split.own(v)
    assert shared.shape == (2, 0 if stays else 3) and own.shape == (2, 3 if stays else 0)
    assert torch.equal(split.join(shared, own), v)


def test_a_parameter_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="No parameter hat; there are body, head"):
        Split.of({"body": torch.Size([1]), "head": torch.Size([1])}, ["hat"])


def test_frozen_parameters_are_constants() -> None:
    one = network()
    one[0].requires_grad_(False)
    assert list(shapes_of(one)) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert flatten(one).shape == (2 + 2 + 8 * 3 + 3,)
    x = torch.ones(1, 1, 4, 4)
    copied = around(one, 2 * flatten(one), {}).eval()
    theirs = functional_call(one.eval(), unflatten(2 * flatten(one), shapes_of(one)), (x,))
    assert torch.equal(copied(x), theirs) and torch.equal(copied[0].weight, one[0].weight)
    assert not copied[0].weight.requires_grad and copied[3].weight.requires_grad


def test_the_fingerprint_tells_frozen_values_apart_and_stays_that_of_before_without_them() -> None:
    assert fingerprint(network()) == "4c5864a48fa692e8"
    made = {}
    for factor, dtype in ((1, torch.float32), (2, torch.float32), (1, torch.bfloat16)):
        one = network()
        one[3].requires_grad_(False).to(dtype).weight.mul_(factor)
        made[factor, dtype] = fingerprint(one)
    assert len({*made.values(), fingerprint(network())}) == 4
    again = network()
    again[3].requires_grad_(False)
    assert fingerprint(again) == made[1, torch.float32]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_buffers_are_stored_as_pairs_of_numbers(dtype: torch.dtype) -> None:
    turns = torch.tensor([1 + 2j, -3j], dtype=dtype)
    stored = with_buffers({}, {"rope.turns": turns, "rope.back": turns.conj(), "mask": torch.ones(1)})
    assert list(stored) == ["buffer.as_real:rope.turns", "buffer.as_real:rope.back", "buffer.mask"]
    assert not any(tensor.is_complex() for tensor in stored.values())
    found = buffers_in(load(save(stored)))
    assert torch.equal(found["rope.turns"], turns) and torch.equal(found["rope.back"], turns.conj())
    assert found["rope.turns"].dtype == dtype and without_buffers(stored | {"q": turns}) == {"q": turns}


def test_a_copy_shares_weights_and_buffers_as_the_network_does() -> None:
    one = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3))
    one[1].weight = one[0].weight
    theta, buffers = torch.arange(9.0 + 6 + 6), buffers_of(one)
    copied = around(one, theta, buffers)
    assert copied[1].weight is copied[0].weight and copied[2].running_mean is buffers["2.running_mean"]
    theta[0] = 7
    assert copied[1].weight[0, 0] == 7, "a view"
    held = state_dict_of(copied)
    assert held.keys() == one.state_dict().keys()
    one.load_state_dict(held)
    assert torch.equal(flatten(one), theta)


def test_body_and_head_by_name() -> None:
    one = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1), nn.BatchNorm1d(1))
    split = Split.at_head(one)
    v = torch.arange(6.0 + 3 + 2)
    assert split.own(v).tolist() == [6, 7, 8]
    named = split.named(split.shared(v), split.own(v))
    assert {name: tuple(part.shape) for name, part in named.items()} == dict(shapes_of(one))
    assert named["1.weight"].tolist() == [[6, 7]] and named["2.bias"].tolist() == [10]
