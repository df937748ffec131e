"""A canary attack on a whole private update: was this one example among the training data?

The attacker knows everything else, chooses the canary, and sees what leaves. If an update is (ε, δ)-private, no rule of
his finds canaries more often than e^ε · (false alarms) + δ; without noise he is never wrong.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayes_core import ClientState, Gaussian, Recipe, client_update
from bayes_core.accounting import epsilon_spent
from bayes_core.flat import flatten, shapes_of
from bayes_core.inference.plain import nll_gradient
from bayes_core.inference.private import Mechanism
from bayes_core.privacy import delta_of, epsilon_of

TRIALS, STEPS, DELTA, HALF = 1500, 2, 0.01, 4
RECIPE = Recipe(
    local_steps=STEPS, personal_steps=1, batch_size=100, mc_samples=1, zeta=0.001, optimizer="sgd", lr_personal=0.01,
    lr_global=0.0, lr_lambda=0.01, adam_beta2=0.99, compile=False,
)  # fmt: skip


def scores(noise: float, trials: int, poisson: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The attacker's score in so many updates, with the canary among the data and without it.

    `poisson`: batches of about half of the examples, drawn in secret. How many there are is known, so a canary that is
    taken out is one whose gradient is 0 (it is not finite); so are all others, lest their coming and going hide it.
    """
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 3, generator=generator), torch.randint(2, (8,), generator=generator)
    canary = torch.tensor([[50.0, -50.0, 50.0]]), torch.tensor([0])
    torch.manual_seed(1)
    network, family = nn.Sequential(nn.Linear(3, 2)), Gaussian()
    w = family.init(flatten(network), -5.0)
    start = ClientState.start(w, network, "sgd")
    # where the canary pulls the means, where it is not known yet
    _, pull = nll_gradient(network, shapes_of(network), w[0], {}, *canary)
    random = np.random.default_rng(2)

    def score(x: Tensor, y: Tensor) -> float:
        mechanism = Mechanism(noise, 1.0, poisson, random.standard_normal, random.random)
        stream = torch.Generator().manual_seed(3)  # the run's seed, which all know
        recipe = replace(RECIPE, batch_size=HALF) if poisson else RECIPE
        updated = client_update(network, family, start, w, x, y, recipe, stream, private=mechanism)
        return -float((updated.personal.q[0] - w[0]) @ pull)

    if poisson:
        x = x * math.nan
    with_it = torch.cat([x, canary[0]]), torch.cat([y, canary[1]])
    without = (torch.cat([x, canary[0] * math.nan]), with_it[1]) if poisson else (x, y)
    return np.array([score(*with_it) for _ in range(trials)]), np.array(
        [score(*without) for _ in range(trials)]
    )


def upper(share: float, trials: int) -> float:
    """Four standard deviations above, so that the test fails by chance once in ten thousand."""
    return share + 4 * math.sqrt(max(share * (1 - share), 1 / trials) / trials)


@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_a_canary_is_found_no_more_often_than_epsilon_allows(noise: float) -> None:
    epsilon = epsilon_of(math.sqrt(STEPS) / noise, DELTA)
    there, not_there = scores(noise, TRIALS)
    gains = []
    for threshold in np.quantile(not_there, [0.5, 0.7, 0.9, 0.95, 0.99]):
        found, alarms = (there > threshold).mean(), (not_there > threshold).mean()
        allowed = math.exp(epsilon) * upper(alarms, TRIALS) + DELTA
        assert found <= allowed + upper(found, TRIALS) - found
        # and for every other ε with its own δ
        for other in (0.0, 0.5, 1.0):
            loose = math.exp(other) * upper(alarms, TRIALS) + delta_of(other, math.sqrt(STEPS) / noise)
            assert found <= loose + upper(found, TRIALS) - found
        gains.append(found - alarms)
    assert max(gains) > 0.15, "an attack that finds nothing shows nothing"


def test_nor_in_secret_batches() -> None:
    """Their ε is lower than that of whole batches, and holds."""
    noise = 0.7
    cost = Mechanism(noise, 1.0, poisson=True).cost(9, HALF, STEPS)
    assert cost.rate == HALF / 9
    epsilon = epsilon_spent([cost], DELTA)
    assert epsilon < epsilon_of(math.sqrt(STEPS) / noise, DELTA)
    # at ε = 0: in each step he learns something only where the canary is in the batch
    most = 1 - (1 - cost.rate * delta_of(0.0, 1 / noise)) ** STEPS
    there, not_there = scores(noise, TRIALS, poisson=True)
    gains = []
    for threshold in np.quantile(not_there, [0.5, 0.7, 0.9, 0.95, 0.99]):
        found, alarms = (there > threshold).mean(), (not_there > threshold).mean()
        assert found <= math.exp(epsilon) * upper(alarms, TRIALS) + DELTA + upper(found, TRIALS) - found
        assert found <= upper(alarms, TRIALS) + most + upper(found, TRIALS) - found
        gains.append(found - alarms)
    assert max(gains) > 0.15, "an attack that finds nothing shows nothing"


def test_without_noise_it_is_always_found() -> None:
    there, not_there = scores(1e-6, 20)
    assert there.min() > not_there.max()
