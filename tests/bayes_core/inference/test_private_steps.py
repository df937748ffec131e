"""Clipped and noised gradients of single examples: what one example can move, and by how much noise hides it."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bayes_core import ClientState, Gaussian, Recipe, SpikeSlab, client_update
from bayes_core.accounting import Release
from bayes_core.families import Family, Point
from bayes_core.flat import flatten, shapes_of
from bayes_core.inference.plain import Weights, nll_gradient, train_weights
from bayes_core.inference.private import Mechanism, clip_factors, clipped_sum, system_uniform
from bayes_core.likelihoods import categorical, gaussian
from bayes_core.networks import WithNoise, dnn, mlp

GENERATOR = torch.Generator().manual_seed(3)


def silence(count: int) -> np.ndarray:
    return np.zeros(count)


def examples(n: int = 12, size: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(n, size, generator=generator)
    return x, torch.randint(classes, (n,), generator=generator)


def chain() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def tanh() -> nn.Module:
    """No chain that is known: it goes through vmap."""
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.LayerNorm(5), nn.Linear(5, 3))


def one_by_one(network: nn.Module, x: Tensor, y: Tensor, likelihood=categorical) -> Tensor:
    """The gradients (n, T) by a loop over examples."""
    theta, shapes = flatten(network), shapes_of(network)
    each = [
        nll_gradient(network, shapes, theta, {}, x[i : i + 1], y[i : i + 1], likelihood)[1]
        for i in range(len(x))
    ]
    return torch.stack(each)


@pytest.mark.parametrize("make", [chain, tanh])
@pytest.mark.parametrize("clip", [0.3, 2.0, 1e6])
def test_the_clipped_sum_is_that_of_a_loop(make, clip: float) -> None:
    network, (x, y) = make(), examples()
    each = one_by_one(network, x, y)
    expected = (each * (clip / each.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    found = clipped_sum(network, flatten(network), {}, x, y, categorical, clip)
    assert torch.allclose(found, expected, atol=1e-5)


def test_some_examples_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network, (x, y) = tanh(), examples()
    at_once = clipped_sum(network, flatten(network), {}, x, y, categorical, 0.5)
    monkeypatch.setattr("bayes_core.inference.private.TOGETHER", 5 * flatten(network).numel())
    assert torch.allclose(
        clipped_sum(network, flatten(network), {}, x, y, categorical, 0.5), at_once, atol=1e-6
    )


def test_a_regressions_examples_too() -> None:
    torch.manual_seed(1)
    network = WithNoise(mlp((6,), 1), None)
    x, y = examples()[0], torch.linspace(-1, 1, 12)
    each = one_by_one(network, x, y, gaussian)
    expected = (each * (0.5 / each.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    assert torch.allclose(
        clipped_sum(network, flatten(network), {}, x, y, gaussian, 0.5), expected, atol=1e-5
    )


@pytest.mark.parametrize("make", [chain, tanh])
def test_taking_an_example_out_moves_the_sum_by_at_most_the_clip(make) -> None:
    network, (x, y), clip = make(), examples(), 0.7
    x[3] *= 1e4  # one that would move everything
    theta = flatten(network)
    whole = clipped_sum(network, theta, {}, x, y, categorical, clip).double()
    for i in range(len(x)):
        rest = torch.arange(len(x)) != i
        moved = (whole - clipped_sum(network, theta, {}, x[rest], y[rest], categorical, clip)).norm()
        assert moved <= clip * (1 + 1e-5)
    assert clipped_sum(network, theta, {}, x[:0], y[:0], categorical, clip).norm() == 0


@pytest.mark.parametrize("make", [chain, tanh])
def test_an_example_without_a_finite_gradient_adds_nothing(make) -> None:
    network, (x, y) = make(), examples()
    x[3] = math.inf
    rest = torch.arange(len(x)) != 3
    found = clipped_sum(network, flatten(network), {}, x, y, categorical, 0.5)
    assert torch.allclose(
        found, clipped_sum(network, flatten(network), {}, x[rest], y[rest], categorical, 0.5), atol=1e-6
    )
    assert clip_factors(torch.tensor([4.0, 0.01, math.inf, math.nan]), 1.0).tolist() == [0.5, 1, 0, 0]


def test_the_noise_has_the_promised_deviation() -> None:
    """z·C in every number, over 10⁴ draws of the operating system; and no two releases share it."""
    mechanism = Mechanism(noise=3.0, clip=0.5)
    draws = mechanism.noised(torch.full((10_000,), 7.0))
    assert float(draws.mean()) == pytest.approx(7.0, abs=5 * 1.5 / 100)
    assert float(draws.std()) == pytest.approx(1.5, rel=0.04)
    assert not torch.equal(draws, mechanism.noised(torch.full((10_000,), 7.0)))


def test_passes_meet_every_example_once_each() -> None:
    mechanism = Mechanism(1.0, 1.0)
    batches = list(mechanism.batches(10, 4, 6, GENERATOR))  # parts of 4, 3 and 3: two passes
    assert [len(batch) for batch in batches] == [4, 3, 3, 4, 3, 3]
    for some in (batches[:3], batches[3:]):
        assert sorted(torch.cat(some).tolist()) == list(range(10))
    assert mechanism.rate(10, 4) == pytest.approx(1 / 3)
    assert mechanism.cost(10, 4, 6) == Release(1.0, 1.0, 2)
    assert mechanism.cost(10, 4, 7) == Release(1.0, 1.0, 3)  # some are met a third time
    assert mechanism.cost(10, 100, 5) == Release(1.0, 1.0, 5)


def test_poisson_batches_are_independent_and_secret() -> None:
    mechanism = Mechanism(1.0, 1.0, poisson=True)
    batches = list(mechanism.batches(50, 10, 4000, GENERATOR))
    sizes = torch.tensor([float(len(batch)) for batch in batches])
    assert float(sizes.mean()) == pytest.approx(10, abs=5 * math.sqrt(8 / 4000))
    assert float(sizes.var()) == pytest.approx(8, rel=0.15)  # 50·0.2·0.8
    met = Counter(int(i) for batch in batches for i in batch)
    assert max(abs(met[i] - 800) for i in range(50)) < 5 * math.sqrt(4000 * 0.16)
    same = [list(mechanism.batches(50, 10, 3, torch.Generator().manual_seed(1))) for _ in range(2)]
    assert any(not torch.equal(a, b) for a, b in zip(*same, strict=True)), "the run's seed tells nothing"
    assert mechanism.cost(50, 10, 7) == Release(1.0, 0.2, 7)
    assert 0 <= system_uniform(1000).min() <= system_uniform(1000).max() < 1


def recipe(**given: object) -> Recipe:
    usual = {
        "local_steps": 4, "personal_steps": 1, "batch_size": 6, "mc_samples": 1, "zeta": 1.0, "optimizer": "sgd",
        "lr_personal": 0.01, "lr_global": 0.01, "lr_lambda": 0.01, "adam_beta2": 0.99, "compile": False,
    }  # fmt: skip
    return Recipe(**(usual | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", [Gaussian(), SpikeSlab()])
def test_an_update_learns_of_the_data_through_the_mechanism_alone(family: Family) -> None:
    """With the noise known and the sum silenced by a tiny clip, two sites' data give the same w."""
    network, (x, y) = chain(), examples()
    w = family.init(flatten(network), -3.0)
    start = ClientState.start(family.unconstrain(w), network, "sgd")

    def updated(x: Tensor, y: Tensor, clip: float) -> Tensor:
        noise = np.random.default_rng(1).standard_normal
        mechanism = Mechanism(1 / clip, clip, normal=noise)  # noise of 1 in all numbers
        return client_update(
            network, family, start, w, x, y, recipe(), torch.Generator().manual_seed(5), private=mechanism
        ).w

    other = -x.flip(0), y.flip(0)
    assert torch.allclose(updated(x, y, 1e-9), updated(*other, 1e-9), atol=1e-7)
    assert not torch.allclose(updated(x, y, 1.0), updated(*other, 1.0), atol=1e-4)


@pytest.mark.parametrize("family", [Gaussian(), SpikeSlab()])
def test_without_clip_and_noise_the_first_step_is_the_plain_one_at_the_same_draw(family: Family) -> None:
    network, (x, y) = chain(), examples()
    w = family.init(flatten(network), -3.0)
    v = family.unconstrain(w)
    found = client_update(
        network, family, ClientState.start(v, network, "sgd"), w, x, y,
        recipe(local_steps=1, batch_size=12), torch.Generator().manual_seed(5),
        gates=torch.Generator().manual_seed(6), private=Mechanism(1e-9, 1e6, normal=silence),
    )  # fmt: skip
    stream = torch.Generator().manual_seed(5)
    torch.randperm(12, generator=stream)
    draw = family.sample(v, stream, torch.Generator().manual_seed(6))
    _, gradient = nll_gradient(network, shapes_of(network), draw.theta, {}, x, y)
    expected = v - 0.01 * family.likelihood_gradient(v, draw, gradient)
    assert torch.allclose(found.personal.q, expected, atol=1e-5)
    assert found.loss == 0


def test_the_compiled_steps_are_the_same() -> None:
    network, (x, y), family = chain(), examples(), Gaussian()
    w = family.init(flatten(network), -3.0)
    found = [
        client_update(
            network, family, ClientState.start(w, network, "adam"), w, x, y,
            recipe(optimizer="adam", compile=compile), torch.Generator().manual_seed(5),
            private=Mechanism(1.0, 1.0, normal=np.random.default_rng(1).standard_normal),
        ).w
        for compile in (False, None)
    ]  # fmt: skip
    assert torch.allclose(*found, atol=1e-5)


def test_several_draws_or_steps_for_one_batch_are_refused() -> None:
    network, (x, y), family = chain(), examples(), Gaussian()
    w = family.init(flatten(network))
    for given in ({"personal_steps": 2}, {"mc_samples": 2}):
        with pytest.raises(ValueError, match="one draw and one step"):
            client_update(
                network, family, ClientState.start(w, network, "sgd"), w, x, y, recipe(**given), GENERATOR,
                private=Mechanism(1.0, 1.0),
            )  # fmt: skip


def test_plain_weights_take_the_same_steps() -> None:
    """With all examples in one batch, no clip that matters and no noise: gradient descent on the mean loss."""
    network, (x, y) = dnn((6,), 3), examples()
    v = Point().init(flatten(network))
    start = Weights.start(v, network, "sgd")
    given = {"steps": 3, "batch_size": 12, "optimizer": "sgd", "lr": 0.1, "adam_beta2": 0.99}
    plain, _ = train_weights(network, start, x, y, **given, generator=GENERATOR)
    quiet = Mechanism(1e-9, 1e6, normal=silence)
    private, loss = train_weights(network, start, x, y, **given, generator=GENERATOR, private=quiet)
    assert torch.allclose(private.v, plain.v, atol=1e-5)
    assert loss == 0
