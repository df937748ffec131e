"""Networks as flat vectors, and back."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from bayes_core.flat import (
    Split,
    buffers_in,
    buffers_of,
    fingerprint,
    flatten,
    shapes_of,
    unflatten,
    with_buffers,
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
