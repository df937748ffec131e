"""Matching neurons: permuted copies of a network come back exactly, noisy ones to their mean, different ones apart."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bayes_core.server.matching import (
    Beliefs,
    Layers,
    Matching,
    match_networks,
    pack,
    part_of,
    unpack,
    widths_in,
)

INPUTS, HIDDEN, OUTPUTS, CLIENTS = 20, 15, 5, 4


def permuted(noise: float) -> tuple[Any, list[Any], list[Any]]:
    """A layer's neurons; of each client an order, and the neurons in it."""
    rng = np.random.default_rng(1)
    truth = rng.normal(size=(HIDDEN, INPUTS + 1 + OUTPUTS))
    orders = [rng.permutation(HIDDEN) for _ in range(CLIENTS)]
    return truth, orders, [truth[order] + noise * rng.normal(size=truth.shape) for order in orders]


def matched(rows: list[Any], beliefs: Beliefs) -> tuple[list[Any], Any]:
    size = rows[0].shape[1]
    matching = Matching(rows, [np.full(size, 1 / beliefs.variance)] * len(rows), np.zeros(size), beliefs)
    return matching.match(3, np.random.default_rng(0)), matching.atoms


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize(("prior", "shrunk"), [(10.0, 0.9756), (1.0, 0.8)])
def test_permuted_networks_are_recovered(noise: float, prior: float, shrunk: float) -> None:
    truth, orders, rows = permuted(noise)
    places, atoms = matched(rows, Beliefs(prior=prior))
    assert len(atoms) == HIDDEN
    where = [
        {int(neuron): int(at) for neuron, at in zip(*pair, strict=True)}
        for pair in zip(orders, places, strict=True)
    ]
    assert all(one == where[0] for one in where), "all copies of a neuron are one atom"
    found = atoms[[where[0][neuron] for neuron in range(HIDDEN)]]
    assert shrunk == pytest.approx(CLIENTS / (CLIENTS + 1 / prior), abs=1e-4)
    mean = sum(row[np.argsort(order)] for row, order in zip(rows, orders, strict=True)) / CLIENTS
    np.testing.assert_allclose(found, mean * CLIENTS / (CLIENTS + 1 / prior), atol=1e-12)
    if not noise:
        assert float(np.median(found / truth)) == pytest.approx(shrunk, abs=1e-4)


def test_neurons_that_differ_by_more_than_their_variance_are_different_ones() -> None:
    *_, rows = permuted(0.2)
    _, atoms = matched(rows, Beliefs(variance=0.01, prior=1e4, mass=1e-3))
    assert len(atoms) == CLIENTS * HIDDEN
    *_, rows = permuted(0.0)
    assert len(matched(rows, Beliefs(variance=0.01, prior=1e4, mass=1e-3))[1]) == HIDDEN


def test_gains_by_hand() -> None:
    """One atom of one client at 2 with σ² = σ₀² = γ = 1: g = 2, P = 2; a neuron at 1 and one at −1."""
    one = np.ones(1)
    matching = Matching([np.array([[2.0]]), np.array([[1.0], [-1.0]])], [one, one], np.zeros(1), Beliefs())
    matching.give(0)
    gains = matching.gains(1)
    new = [1 / 2 + 2 * math.log(1 / 2), 1 / 2 + 2 * math.log(1 / 2) - 2 * math.log(2)]
    np.testing.assert_allclose(gains, [[9 / 3 - 4 / 2, *new], [1 / 3 - 4 / 2, *new]])
    matching.give(1)
    assert matching.places[1] is not None and matching.places[1].tolist() == [0, 1]
    np.testing.assert_allclose(matching.atoms, [[1.0], [-0.5]])


def test_an_atom_that_more_networks_have_gains_by_twice_the_log_of_its_odds() -> None:
    rows = [np.array([[3.0], [-3.0]]), np.array([[3.0]]), np.array([[0.0]])]
    matching = Matching(rows, [np.ones(1)] * 3, np.zeros(1), Beliefs())
    matching.match(0, np.random.default_rng(0), [np.array([0, 1]), np.array([0]), None])
    matching.take(2)
    counts = matching.members.tolist()
    assert counts == [2, 1]
    popular = matching.gains(2)[0, :2] - [36 / 4 - 36 / 3, 9 / 3 - 9 / 2]
    np.testing.assert_allclose(popular, [2 * math.log(2), 2 * math.log(1 / 2)])


@pytest.mark.parametrize("seed", range(5))
def test_no_sweep_makes_the_matching_worse(seed: int) -> None:
    """Given the others, a network's new places gain at least what its old ones did."""
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=(6, 8)) * 2 for _ in range(5)]
    matching = Matching(rows, [np.full(8, 2.0)] * 5, np.full(8, 0.3), Beliefs(variance=0.5))
    matching.match(0, rng)
    for j in [*range(5)] * 3:
        old, members = matching.places[j], matching.members.copy()
        assert old is not None
        members[old] -= 1
        numbers = np.where(members > 0, np.cumsum(members > 0) - 1, -1)[old]
        numbers[numbers < 0] = (members > 0).sum() + np.arange((numbers < 0).sum())
        matching.take(j)
        gains = matching.gains(j)
        matching.give(j)
        new = matching.places[j]
        assert new is not None
        every = np.arange(6)
        assert gains[every, new].sum() >= gains[every, numbers].sum() - 1e-9


def test_no_more_neurons_than_the_cap_but_a_clients_own() -> None:
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=(6, 4)) * 50 for _ in range(5)]
    assert len(matched(rows, Beliefs(variance=0.01, prior=1e4))[1]) == 30
    assert len(matched(rows, Beliefs(variance=0.01, prior=1e4, cap=10))[1]) == 10
    assert len(matched(rows, Beliefs(variance=0.01, prior=1e4, cap=1))[1]) == 6


def test_it_goes_on_from_an_earlier_matching_without_those_who_left() -> None:
    _, orders, rows = permuted(0.1)
    places, atoms = matched(rows, Beliefs())
    again = Matching(rows[1:], [np.ones(rows[0].shape[1])] * 3, np.zeros(rows[0].shape[1]), Beliefs())
    found = again.match(0, np.random.default_rng(0), [places[1], places[2], None])
    assert [one.tolist() for one in found] == [one.tolist() for one in places[1:]]
    lonely = Matching(rows[:1], [np.ones(rows[0].shape[1])], np.zeros(rows[0].shape[1]), Beliefs())
    (alone,) = lonely.match(0, np.random.default_rng(0), [np.arange(HIDDEN) * 2])
    assert alone.tolist() == list(range(HIDDEN)), "atoms that nobody has any more are gone"
    assert len(atoms) == HIDDEN and orders


def network(widths: list[int], seed: int) -> Layers:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(out, into)), rng.normal(size=out)) for into, out in pairwise(widths)]


def shuffled(layers: Layers, seed: int) -> Layers:
    """The same function with its hidden neurons in another order."""
    rng = np.random.default_rng(seed)
    return part_of(layers, [rng.permutation(len(bias)) for _, bias in layers[:-1]])


def outputs(layers: Layers, x: Any) -> Any:
    for number, (weight, bias) in enumerate(layers, 1):
        x = x @ weight.T + bias
        x = np.maximum(x, 0) if number < len(layers) else x
    return x


@pytest.mark.parametrize("widths", [[4, 6, 3], [4, 6, 5, 3], [4, 6, 5, 7, 3]])
def test_shuffled_networks_of_several_layers_are_one_network(widths: list[int]) -> None:
    truth = network(widths, 0)
    several = [shuffled(truth, seed) for seed in range(1, 5)]
    beliefs = Beliefs(variance=0.01, prior=1e6, mass=1e-3)
    layers, places = match_networks(
        several, np.full((4, widths[-1]), 0.25), beliefs, 3, np.random.default_rng(0), [None] * 4
    )
    assert widths_in(layers) == widths
    x = np.random.default_rng(9).normal(size=(7, widths[0]))
    np.testing.assert_allclose(outputs(layers, x), outputs(truth, x), rtol=1e-4, atol=1e-4)
    for own, one in zip(places, several, strict=True):
        np.testing.assert_allclose(pack(part_of(layers, own)), pack(one), rtol=1e-4, atol=1e-4)


def test_a_wider_network_computes_for_each_client_what_its_own_did() -> None:
    """Networks that have nothing in common lie side by side, and a weight between them is the prior's."""
    several = [network([4, 6, 5, 3], seed) for seed in range(3)]
    beliefs = Beliefs(variance=1e-6, prior=1e3, mass=1e-3)
    layers, places = match_networks(
        several, np.ones((3, 3)), beliefs, 2, np.random.default_rng(0), [None] * 3
    )
    assert widths_in(layers) == [4, 18, 15, 3]
    np.testing.assert_allclose(part_of(layers, places[1])[1][0], several[1][1][0], rtol=1e-4)
    between = layers[1][0][np.ix_(places[0][1], places[1][0])]
    assert float(np.abs(between).max()) < 1e-9


def test_who_has_no_example_of_a_class_has_no_say_in_it() -> None:
    """σ² = σ₀² = 1, and all of the second class at one client: (w·0 + w′·1)/(1 + 1) of its weights, and of its bias."""
    a, b = network([2, 1, 2], 0), network([2, 1, 2], 0)
    b[1] = b[1][0] + 0.1, b[1][1]
    shares = np.array([[0.5, 0.0], [0.5, 1.0]])
    layers, _ = match_networks([a, b], shares, Beliefs(mass=1e-9), 1, np.random.default_rng(0), [None] * 2)
    weight = layers[1][0][:, 0]
    assert weight[1] == pytest.approx(b[1][0][1, 0] / 2)
    assert weight[0] == pytest.approx((a[1][0][0, 0] + b[1][0][0, 0]) / 4)
    assert layers[1][1].tolist() == pytest.approx(((a[1][1] + 0.1) / 2).tolist()), (
        "a bias has the prior mean 0.1"
    )
    np.testing.assert_allclose(layers[0][0], a[0][0] * 2 / 3)


def test_packed_and_unpacked() -> None:
    layers = network([3, 4, 2], 1)
    again = unpack(pack(layers), [3, 4, 2])
    assert all(
        np.array_equal(a, b)
        for one, two in zip(layers, again, strict=True)
        for a, b in zip(one, two, strict=True)
    )
