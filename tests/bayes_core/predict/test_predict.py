"""The predictive against a numerical integral and the plain network."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayes_core.families import Family, Gaussian, Point, SpikeSlab
from bayes_core.flat import buffers_of, flatten
from bayes_core.predict import predictive as predict
from bayes_core.predict.predictive import point_probabilities, predictive


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Logistic(nn.Module):
    """p(y = 1 | x) = sigmoid(θx), as two logits."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x), self.theta * x], -1)


def test_predictive_is_the_integral_over_the_weights() -> None:
    mu, sigma, samples = 0.8, 1.5, 4000
    x = torch.tensor([[-2.0], [-0.5], [0.0], [1.0], [3.0]])
    v = torch.tensor([[mu], [math.log(math.expm1(sigma))]])
    got = predictive(Logistic(), Gaussian(), v, x, samples, seeded(0))[:, 1].numpy()

    grid = np.linspace(mu - 10 * sigma, mu + 10 * sigma, 20_001)
    density = np.exp(-0.5 * ((grid - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    values = 1 / (1 + np.exp(-grid * x.numpy()))
    share = density * (grid[1] - grid[0])  # the ends are ten σ away: the plain sum is the trapezoid rule
    expected = values @ share
    sd = np.sqrt((values - expected[:, None]) ** 2 @ share)
    assert (abs(got - expected) <= 5 * sd / math.sqrt(samples) + 1e-6).all()
    # not the network at the mean: at x = 3 the integral is 0.70, sigmoid(0.8·3) is 0.92
    assert abs(expected[-1] - 1 / (1 + math.exp(-3 * mu))) > 0.1


def test_draws_come_in_mirrored_pairs() -> None:
    # at μ = 0 sigmoid(θx) and sigmoid(−θx) add up to 1: one pair is already the whole integral
    v, x = torch.tensor([[0.0], [1.0]]), torch.tensor([[-3.0], [0.5], [2.0]])
    for samples in (2, 6):
        got = predictive(Logistic(), Gaussian(), v, x, samples, seeded(0))
        torch.testing.assert_close(got, torch.full((3, 2), 0.5))
    one = predictive(Logistic(), Gaussian(), v, x, 1, seeded(0))
    theta = Gaussian().sample(v, seeded(0)).theta
    torch.testing.assert_close(one[:, 1], torch.sigmoid(theta * x[:, 0]))


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return network, Gaussian().init(flatten(network), -1.0), torch.randn(10, 4)


def test_rows_sum_to_one_and_the_seed_decides() -> None:
    network, v, x = problem()
    first, again, other = (predictive(network, Gaussian(), v, x, 5, seeded(s)) for s in (1, 1, 2))
    torch.testing.assert_close(first.sum(-1), torch.ones(10))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_point_is_the_softmax_of_the_plain_network() -> None:
    network, v, x = problem()
    plain = network(x).softmax(-1).detach()
    for samples in (1, 7):
        torch.testing.assert_close(predictive(network, Point(), v[:1], x, samples, seeded(0)), plain)
    torch.testing.assert_close(point_probabilities(network, Gaussian(), v, x), plain)


def test_evaluation_mode_with_the_given_buffers() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.9), nn.Linear(4, 3)).train()
    own = copy.deepcopy(buffers_of(network))
    mean, variance = torch.randn(4), torch.rand(4) + 0.5
    buffers = buffers_of(network) | {"0.running_mean": mean, "0.running_var": variance}
    x = torch.randn(10, 4)
    got = predictive(network, Point(), flatten(network)[None], x, 1, seeded(0), buffers)

    weight, bias = network[2].weight, network[2].bias
    logits = (x - mean) / (variance + 1e-5).sqrt() @ weight.T + bias  # γ = 1 and β = 0 at the start
    torch.testing.assert_close(got, logits.softmax(-1).detach())
    torch.testing.assert_close(buffers_of(network), own, rtol=0, atol=0)
    assert torch.equal(buffers["0.running_mean"], mean)


@pytest.mark.parametrize("chunk", [1, 3, 10])
def test_chunks_do_not_change_the_answer(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network, v, x = problem()
    whole = predictive(network, Gaussian(), v, x, 3, seeded(0))
    monkeypatch.setattr(predict, "CHUNK", chunk)
    torch.testing.assert_close(predictive(network, Gaussian(), v, x, 3, seeded(0)), whole)


CHAIN = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
IMAGES = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize("mean", [False, True], ids=["draws alone", "mean first"])
@pytest.mark.parametrize(
    "family",
    [Gaussian(), SpikeSlab(), SpikeSlab(gated=False), Point()],
    ids=["gaussian", "spike-slab", "no gates", "point"],
)
@pytest.mark.parametrize("network", [CHAIN, IMAGES], ids=["all draws in one product", "one by one"])
@pytest.mark.parametrize("block", [1, 10**6])
def test_draws_are_those_of_one_after_the_other(
    family: Family, network: nn.Module, block: int, mean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "BLOCK", block)
    monkeypatch.setattr(predict, "CHUNK", 4)
    monkeypatch.setattr(predict, "CHUNK_OF_CHAINS", 4)
    v = family.unconstrain(family.init(flatten(network), 0.0, 0.6))
    x = torch.randn(7, 1, 3, 4, generator=seeded(3))
    generator = seeded(5)
    expected = [predict.outputs(network, family.centre(v), x, {})] if mean else []
    for pair in range(3 if family.uncertain else 1):
        noise = family.noise(v, generator)
        for draw in (noise, noise.mirrored())[: 1 if pair == 2 or not family.uncertain else 2]:
            expected.append(predict.outputs(network, family.reparameterise(v, draw).theta, x, {}))
    got = list(predict.draw_outputs(network, family, v, x, 5, seeded(5), mean=mean))
    torch.testing.assert_close(got, expected)
