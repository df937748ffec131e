"""The predictive of a regression against torch.distributions, and its tally against numbers made by hand."""

import math

import pytest
import torch
from recipes import recipe_of
from torch.distributions import Categorical, MixtureSameFamily, Normal

from bayes_core import ClientState, Gaussian, Point, client_update
from bayes_core.flat import flatten
from bayes_core.likelihoods import categorical, gaussian, likelihood_of
from bayes_core.networks import WithNoise
from bayes_core.predict.forecast import Forecast, forecast
from bayes_core.predict.metrics import NUMBERS_LENGTHS, add, is_possible, summarise, tally_numbers
from fedbayes.protocol.models import build

MEANS = torch.tensor([[0.0, 1.0, -2.0], [3.0, 1.5, -2.0]], dtype=torch.float64)
NOISES = torch.tensor([[1.0, 0.5, 2.0], [0.5, 0.25, 2.0]], dtype=torch.float64)
FOUND = Forecast(MEANS, NOISES)


def mixture() -> MixtureSameFamily:
    return MixtureSameFamily(Categorical(torch.ones(3, 2)), Normal(MEANS.T, NOISES.T))


def test_the_predictive_is_a_mixture() -> None:
    y = torch.tensor([0.5, 1.2, 3.0])
    torch.testing.assert_close(FOUND.mean, mixture().mean)
    torch.testing.assert_close(FOUND.sd, mixture().stddev)
    torch.testing.assert_close(FOUND.log_density(y), mixture().log_prob(y.double()))
    torch.testing.assert_close(FOUND.cdf(y), mixture().cdf(y.double()))
    torch.testing.assert_close(FOUND.doubt, torch.tensor([1.5, 0.25, 0.0], dtype=torch.float64))
    torch.testing.assert_close(FOUND.sd**2, FOUND.noise**2 + FOUND.doubt**2)


def test_an_interval_leaves_as_much_below_as_above() -> None:
    for level in (0.5, 0.9, 0.99):
        low, high = FOUND.interval(level)
        for bound, p in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
            torch.testing.assert_close(mixture().cdf(bound), torch.full((3,), p, dtype=torch.float64))
    one = Normal(-2.0, 2.0).icdf(torch.tensor([0.05, 0.95]))
    torch.testing.assert_close(torch.stack(FOUND.interval()).T[2].float(), one)
    with pytest.raises(ValueError, match="between 0 and 1, not 1"):
        FOUND.interval(1)


def test_units() -> None:
    own, y = FOUND.unscaled(10.0, 4.0), torch.tensor([0.5, 1.2, 3.0], dtype=torch.float64)
    torch.testing.assert_close(own.mean, FOUND.mean * 4 + 10)
    torch.testing.assert_close(own.sd, FOUND.sd * 4)
    torch.testing.assert_close(own.cdf(y * 4 + 10), FOUND.cdf(y))
    torch.testing.assert_close(own.log_density(y * 4 + 10), FOUND.log_density(y) - math.log(4))


def test_the_tally_by_hand() -> None:
    """Four targets of N(0, 1): far below, at the middle, within, just outside of the 90 % interval."""
    found = Forecast(torch.zeros(1, 4, dtype=torch.float64), torch.ones(1, 4, dtype=torch.float64))
    y = torch.tensor([-3.0, 0.001, 1.6, 1.7])
    one = tally_numbers(found, y)
    assert {key: len(numbers) for key, numbers in one.items()} == NUMBERS_LENGTHS
    assert one["ranks"] == [1.0, *[0.0] * 9, 1.0, *[0.0] * 7, 1.0, 1.0]
    figures = summarise(add([one, one]))
    assert figures["coverage"] == 0.5 and figures["rmse"] == pytest.approx(
        math.sqrt((9 + 1.6**2 + 1.7**2) / 4), 1e-6
    )
    assert figures["nll"] == pytest.approx(-float(Normal(0.0, 1.0).log_prob(y).mean()))
    assert is_possible(one, 4) and not is_possible(one, 5)
    for key, value in (("squared_error", [-1.0]), ("ranks", [5.0, *[0.0] * 18, -1.0]), ("nll", [math.nan])):
        assert not is_possible(one | {key: value}, 4)


def test_the_likelihood_is_that_of_torch() -> None:
    outputs, y = torch.tensor([[0.2, -0.5], [1.0, 0.3]]), torch.tensor([0.5, -1.0])
    expected = -Normal(outputs[:, 0], outputs[:, 1].exp()).log_prob(y).sum()
    torch.testing.assert_close(gaussian(outputs, y), expected)
    assert likelihood_of(y) is gaussian and likelihood_of(torch.tensor([1, 2])) is categorical


def test_a_network_with_noise() -> None:
    x = torch.randn(5, 3)
    learned, fixed = build("mlp", (3,), 0, seed=1), build("mlp", (3,), 0, seed=1, noise=0.2)
    assert isinstance(learned, WithNoise) and learned(x).shape == (5, 2)
    torch.testing.assert_close(learned(x)[:, 1].exp(), torch.full((5,), 0.5))
    torch.testing.assert_close(fixed(x)[:, 1].exp(), torch.full((5,), 0.2))
    assert len(flatten(learned)) == len(flatten(fixed)) + 1
    torch.testing.assert_close(learned(x)[:, 0], fixed(x)[:, 0])
    torch.testing.assert_close(learned(x)[:, 0], build("mlp", (3,), 1, seed=1)(x)[:, 0])


@pytest.mark.parametrize("noise", [None, 0.3])
def test_a_line_is_learned_with_its_noise(noise: float | None) -> None:
    """y = 2x − 1 + ε with ε ~ N(0, 0.3²): the mean, the noise and the coverage come out."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(400, 1, generator=generator) * 2 - 1
    y = 2 * x[:, 0] - 1 + 0.3 * torch.randn(400, generator=generator)
    network, family = build("mlp", (1,), 0, seed=1, noise=noise), Gaussian()
    mu = flatten(network)
    w = torch.stack([mu, torch.full_like(mu, -4.0)])
    personal = ClientState.start(w, network, "adam")
    recipe = recipe_of(local_steps=600, zeta=0.1, lr_personal=0.005, lr_global=0.005, batch_size=100)
    updated = client_update(network, family, personal, w, x[:300], y[:300], recipe, generator, gaussian)
    found = forecast(network, family, updated.personal.q, x[300:], 10, generator)
    figures = summarise(tally_numbers(found, y[300:]))
    assert figures["rmse"] < 0.36 and 0.8 < figures["coverage"] < 0.98
    assert 0.25 < float(found.noise.mean()) < 0.36
    alone = forecast(network, Point(), mu[None], x, 10, generator)
    assert alone.means.shape == (1, 400) and float(alone.doubt.max()) == 0
