"""Low-rank adapters: what is learned, what stays, and that the network begins as it was."""

import copy

import pytest
import torch
from torch import nn

from bayes_core import low_rank
from bayes_core.adapters import LowRank
from bayes_core.flat import flatten, shapes_of


def trained_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4), nn.ReLU()), nn.Linear(4, 3)
    )


def test_only_the_products_are_learned() -> None:
    network = low_rank(trained_network(), rank=2)
    assert len(flatten(network)) == 2 * (6 + 5) + 2 * (5 + 4) + 2 * (4 + 3)
    assert list(shapes_of(network)) == ["0.down", "0.up", "2.0.down", "2.0.up", "3.down", "3.up"]


def test_it_begins_as_it_was_and_then_is_a_sum() -> None:
    plain, x = trained_network(), torch.randn(7, 6)
    network = low_rank(copy.deepcopy(plain), rank=1)
    assert torch.equal(network(x), plain(x))
    layer = LowRank(nn.Linear(6, 5), 2)
    nn.init.normal_(layer.up)
    by_hand = x @ (layer.layer.weight + layer.up @ layer.down).T + layer.layer.bias
    torch.testing.assert_close(layer(x), by_hand)
    torch.testing.assert_close(nn.functional.linear(x, layer.weight, layer.bias), by_hand)


def test_a_new_head_is_learned_whole() -> None:
    network = low_rank(trained_network(), rank=1, learn=["3."])
    assert list(shapes_of(network)) == ["0.down", "0.up", "2.0.down", "2.0.up", "3.weight", "3.bias"]
    assert type(network[3]) is nn.Linear


def test_a_layer_in_two_places_has_one_adapter() -> None:
    shared = nn.Linear(4, 4)
    network = low_rank(nn.Sequential(shared, nn.ReLU(), shared), 1)
    assert network[0] is network[2] and len(flatten(network)) == 8


def test_a_single_layer() -> None:
    assert isinstance(low_rank(nn.Linear(4, 3), 2), LowRank)


@pytest.mark.parametrize("training", [True, False])
def test_inside_a_transformer_whose_layers_are_read_and_not_called(training: bool) -> None:
    torch.manual_seed(0)
    plain = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    network, x = low_rank(copy.deepcopy(plain), rank=2), torch.randn(3, 5, 8)
    torch.testing.assert_close(network(x), plain(x))
    nn.init.normal_(network.linear1.up)
    with torch.no_grad():
        moved = copy.deepcopy(plain)
        moved.linear1.weight += network.linear1.up @ network.linear1.down
        torch.testing.assert_close(network(x), moved(x))


@pytest.mark.parametrize(
    ("rank", "learn", "sentence"),
    [
        (5, [], "a rank from 1 to 4, not 5"),
        (0, [], "a rank from 1 to 5, not 0"),
        (1, ["head"], 'No parameter begins with "head"; there are 0.weight, 0.bias'),
    ],
)
def test_what_it_cannot_do_is_told(rank: int, learn: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        low_rank(trained_network(), rank, learn)
