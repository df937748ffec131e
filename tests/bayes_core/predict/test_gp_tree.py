"""The tree of Gaussian processes: which classes part first, what a path is worth, and what it learns from."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from bayes_core.flat import Split, flatten
from bayes_core.predict import polya_gamma
from bayes_core.predict.gp_tree import (
    FLOOR,
    Node,
    TreePredictor,
    below,
    embedding,
    probabilities,
    stratified,
    tree_loss,
    tree_of,
)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def scattered(
    centres: dict[int, tuple[float, ...]], each: int, spread: float = 0.02
) -> tuple[Tensor, Tensor]:
    """Unit vectors around the classes' centres."""
    generator = torch.Generator().manual_seed(0)
    labels = [label for label in centres for _ in range(each)]
    points = torch.tensor([centres[label] for label in labels], dtype=torch.float64)
    noise = torch.randn(points.shape, generator=generator, dtype=torch.float64)
    return normalize(points + spread * noise), torch.tensor(labels)


def test_near_classes_part_last() -> None:
    z, y = scattered({0: (1, 0, 0), 3: (0, 1, 0), 4: (1, 0.2, 0), 7: (0, 1, 0.2)}, 3)
    root, *rest = tree_of(z, y)
    assert set(root) == {(0, 4), (3, 7)}
    assert sorted(map(sorted, rest)) == [[(0,), (4,)], [(3,), (7,)]]
    assert tree_of(z[y == 3], y[y == 3]) == [], "a single class"
    assert tree_of(z[y < 4], y[y < 4]) == [Node((0,), (3,))]
    dead = tree_of(torch.zeros(6, 2).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    assert dead == [Node((0,), (1, 2)), Node((1,), (2,))], "an embedding that says nothing"


def test_classes_far_apart_are_told_apart() -> None:
    centres = {1: (1.0, 0, 0), 4: (-1.0, 0, 0)}
    (z, y), (new, truth) = scattered(centres, 20), scattered(centres, 50, 0.1)
    p, _ = probabilities(tree_of(z, y), z, y, new, 5, 30, rng())
    assert (p.argmax(1) == truth).all() and float(p.amax(1).min()) > 0.8
    torch.testing.assert_close(p.sum(1), torch.ones(100).double())
    assert float(p[:, [0, 2, 3]].max()) == pytest.approx(FLOOR, rel=1e-4), "classes that were never seen"


def test_of_two_classes_it_is_the_gaussian_process_itself() -> None:
    z, y = scattered({0: (1, 0), 1: (0, 1)}, 4)
    new = scattered({0: (1, 1)}, 3)[0]
    found, each = probabilities(tree_of(z, y), z, y, new, 2, 6, rng(7))
    omega = polya_gamma.gibbs(z, y == 0, 6, 5, rng(7))
    expected = polya_gamma.expected_sigmoid(*polya_gamma.predictive(z, y == 0, omega, new))
    torch.testing.assert_close(each[..., 0], expected)
    torch.testing.assert_close(found[:, 0], expected.mean(0))


def test_a_class_has_the_product_along_its_path() -> None:
    z, y = scattered({0: (1, 0, 0), 1: (0, 1, 0), 2: (0, 1, 0.3)}, 4)
    new = scattered({0: (1, 1, 1)}, 2)[0]
    nodes = [Node((0,), (1, 2)), Node((1,), (2,))]
    found, _ = probabilities(nodes, z, y, new, 3, 8, rng(3))
    one = rng(3)
    shares = []
    for node in nodes:
        here = torch.isin(y, torch.tensor(node.left + node.right))
        x, left = z[here], torch.isin(y[here], torch.tensor(node.left))
        omega = polya_gamma.gibbs(x, left, 8, 5, one)
        shares.append(polya_gamma.expected_sigmoid(*polya_gamma.predictive(x, left, omega, new)).mean(0))
    path = torch.stack([shares[0], (1 - shares[0]) * shares[1], (1 - shares[0]) * (1 - shares[1])], 1)
    torch.testing.assert_close(found, path)


def test_the_loss_is_that_of_one_half_given_the_other() -> None:
    z, y = scattered({0: (1, 0), 1: (0, 1)}, 5, 0.3)
    loss = tree_loss([Node((0,), (1,))], z, y, 4, rng(1))
    one = rng(1)
    sides = [
        torch.from_numpy(one.permutation(np.arange(5))),
        torch.from_numpy(one.permutation(np.arange(5, 10))),
    ]
    support, query = (torch.cat([side[part] for side in sides]) for part in (slice(2, 5), slice(0, 2)))
    left = y == 0
    omega = polya_gamma.gibbs(z[support], left[support], 4, 5, one)
    p = polya_gamma.expected_sigmoid(
        *polya_gamma.predictive(z[support], left[support], omega, z[query])
    ).mean(0)
    expected = -torch.where(left[query], p, 1 - p).log().mean()
    assert loss is not None and float(loss) == pytest.approx(float(expected), rel=1e-9)
    assert tree_loss([], z, y, 4, rng()) is None
    assert tree_loss([Node((0,), (1,))], z[[0, 5]], y[[0, 5]], 4, rng()) is None, (
        "nothing is left to be asked"
    )


def test_learning_moves_an_embedding_apart() -> None:
    z, y = scattered({0: (1, 0.9), 1: (0.9, 1)}, 8, 0.05)
    leaf = z.clone().requires_grad_()
    numbers, first = rng(), tree_loss([Node((0,), (1,))], z, y, 20, rng())
    for _ in range(20):
        loss = tree_loss([Node((0,), (1,))], normalize(leaf), y, 20, numbers)
        assert loss is not None
        (gradient,) = torch.autograd.grad(loss, leaf)
        leaf = (leaf - 0.5 * gradient).detach().requires_grad_()
    after = normalize(leaf).detach()
    far = (after[:8].mean(0) - after[8:].mean(0)).norm()
    assert far > 2 * (z[:8].mean(0) - z[8:].mean(0)).norm()
    assert first is not None and float(loss.detach()) < float(first)


def test_of_many_examples_every_class_has_its_share() -> None:
    y = torch.tensor([0] * 60 + [1] * 30 + [2] * 1)
    some = stratified(y, 30, rng())
    assert torch.bincount(y[some]).tolist() == [19, 9, 1] and len(set(some.tolist())) == 29
    assert stratified(y, 91, rng()).tolist() == list(range(91))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 5))


def test_the_network_below_its_head() -> None:
    one = network()
    split = Split.at_head(one)
    body = below(one, split)
    assert torch.equal(flatten(body), split.shared(flatten(one)))
    x = torch.randn(6, 4)
    z = embedding(body, flatten(body), dict(one.named_buffers()), x)
    one.eval()
    expected = one[2](one[1](x)).double()
    torch.testing.assert_close(z, (expected / expected.norm(dim=1, keepdim=True)).detach())
    with pytest.raises(
        ValueError, match=r"\(1\.bias, 3\.weight\) is no part that can be taken off the network"
    ):
        below(one, Split.of(split.shapes, ["1.bias", "3.weight"]))


def test_a_stored_tree_predicts_as_before() -> None:
    one, x = network(), torch.randn(12, 4)
    split, y = Split.at_head(one), torch.tensor([0, 1, 4] * 4)
    body, buffers = below(one, split), dict(one.named_buffers())
    z = embedding(body, flatten(body), buffers, x)
    tree = TreePredictor(body, split, flatten(body), buffers, z, y, 5)
    stored = {name: tensor.clone() for name, tensor in tree.tensors().items()}
    again = TreePredictor.restore(network(), stored)
    found, same = (part.predict(x, 1, torch.Generator().manual_seed(5)) for part in (tree, again))
    assert torch.equal(found.probabilities, same.probabilities)
    other = tree.predict(x, 1, torch.Generator().manual_seed(6))
    assert not torch.equal(found.probabilities, other.probabilities), "the chains are drawn"
    assert float(found.entropy.max()) < math.log(5) and float(found.mutual_information.min()) >= 0
    assert tree.mean_network() is None and tree.point_probabilities(x) is None
    with pytest.raises(ValueError, match="predicts classes, not numbers"):
        tree.forecast(x, 1, torch.Generator())
