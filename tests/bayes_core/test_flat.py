"""Networks as flat vectors, and back."""

import torch
from torch import nn
from torch.func import functional_call

from bayes_core.flat import buffers_of, fingerprint, flatten, shapes_of, unflatten


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
