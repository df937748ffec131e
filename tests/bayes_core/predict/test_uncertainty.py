"""Entropy and its two parts against an integral over the weights; AUROC against counted pairs."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from bayes_core.families import Gaussian, Point, SpikeSlab
from bayes_core.flat import flatten
from bayes_core.predict.predictive import predictive
from bayes_core.predict.uncertainty import auroc, entropy, predict


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Logistic(nn.Module):
    """p(y = 1 | x) = sigmoid(θx), as two logits."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x), self.theta * x], -1)


def test_entropy_is_that_of_torch_distributions() -> None:
    p = torch.randn(50, 7, generator=seeded(0), dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(entropy(p), Categorical(p).entropy())
    assert entropy(torch.tensor([1.0, 0.0])) == 0 and entropy(torch.full((4,), 0.25)) == pytest.approx(
        math.log(4)
    )


def test_both_parts_are_the_integrals_over_the_weights() -> None:
    mu, sigma = 0.8, 1.5
    x = torch.tensor([[-2.0], [0.0], [1.0], [3.0]])
    v = torch.tensor([[mu], [math.log(math.expm1(sigma))]])
    got = predict(Logistic(), Gaussian(), v, x, 20_000, seeded(0))

    grid = np.linspace(mu - 10 * sigma, mu + 10 * sigma, 20_001)
    share = np.exp(-0.5 * ((grid - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi)) * (grid[1] - grid[0])
    p = 1 / (1 + np.exp(-grid * x.numpy()))

    def h(p: np.ndarray) -> np.ndarray:
        return -p * np.log(np.maximum(p, 1e-300)) - (1 - p) * np.log(np.maximum(1 - p, 1e-300))

    total, expected = h(p @ share), h(p) @ share
    np.testing.assert_allclose(got.entropy.numpy(), total, atol=0.01)
    np.testing.assert_allclose(got.expected_entropy.numpy(), expected, atol=0.01)
    np.testing.assert_allclose(got.mutual_information.numpy(), total - expected, atol=0.01)
    # θ does not matter at x = 0: a coin, and nothing that data could settle
    assert got.entropy[1] == pytest.approx(math.log(2)) and got.mutual_information[1] == pytest.approx(
        0, abs=1e-9
    )
    assert got.mutual_information[3] > 0.2


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return network, Gaussian().init(flatten(network), -1.0), torch.randn(10, 4)


def test_the_prediction_is_the_predictive() -> None:
    network, v, x = problem()
    got = predict(network, Gaussian(), v, x, 6, seeded(1))
    torch.testing.assert_close(got.probabilities.float(), predictive(network, Gaussian(), v, x, 6, seeded(1)))
    torch.testing.assert_close(got.entropy, entropy(got.probabilities))
    assert torch.equal(got.labels, got.probabilities.argmax(-1))
    assert torch.equal(got.confidence, got.probabilities.gather(-1, got.labels[:, None])[:, 0])
    assert (got.mutual_information > 0).all() and (got.expected_entropy > 0).all()


def test_the_seed_decides() -> None:
    network, v, x = problem()
    sparse = torch.cat([v, torch.zeros_like(v[:1])])
    for family, weights in ((Gaussian(), v), (SpikeSlab(), sparse)):
        first, again, other = (predict(network, family, weights, x, 4, seeded(s)) for s in (1, 1, 2))
        assert torch.equal(first.mutual_information, again.mutual_information)
        assert not torch.equal(first.mutual_information, other.mutual_information)


def test_one_network_does_not_disagree_with_itself() -> None:
    network, v, x = problem()
    got = predict(network, Point(), v[:1], x, 10, seeded(0))
    assert (got.mutual_information == 0).all() and (got.entropy > 0).all()


def test_auroc_counts_pairs() -> None:
    known, unknown = torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0.4, 0.9, 0.05])
    pairs = [(a < b) + 0.5 * (a == b) for a in known.tolist() for b in unknown.tolist()]
    assert auroc(known, unknown) == pytest.approx(sum(pairs) / 12)
    assert auroc(torch.zeros(3), torch.ones(2)) == 1.0 and auroc(torch.ones(3), torch.zeros(2)) == 0.0
