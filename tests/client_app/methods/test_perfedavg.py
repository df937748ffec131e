"""Per-FedAvg's step by hand, its Hessian-free term against autograd's, and its personal model."""

import pytest
import torch
from quadratic import client_of, one, quadratic, settings_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from bayes_core.flat import flatten, shapes_of, unflatten
from bayes_core.inference.plain import MeanLoss
from bayes_core.likelihoods import categorical
from bayes_core.networks import dnn
from fedbayes.protocol.settings import SettingsError

STEP = {"local_steps": 1, "perfedavg__lr": 0.5, "perfedavg__lr_adapt": 0.1}


@pytest.mark.parametrize(("hessian_free", "expected"), [(False, 1.4), (True, 1.72)])
def test_one_step_by_hand(hessian_free: bool, expected: float) -> None:
    """w = 3: w̃ = 3 − 0.1·4 = 2.6, v = 3.2; 3 − 0.5·3.2, and with h = 6.4: 3 − 0.5·(3.2 − 0.1·6.4)."""
    client = quadratic("perfedavg", perfedavg__hessian_free=hessian_free, **STEP)
    trained = client.train({}, {"w": one(3.0)}, 1)
    assert float(trained.uploads["w"]) == pytest.approx(expected, abs=1e-4 if hessian_free else 1e-6)


def test_every_step_starts_from_the_updated_weights() -> None:
    """w − β·a·(1 − αa)·(w − c), twice: 3 → 1.4 → 1.08."""
    client = quadratic("perfedavg", **STEP | {"local_steps": 2})
    assert float(client.train({}, {"w": one(3.0)}, 1).uploads["w"]) == pytest.approx(1.08)


def test_first_order_steps_go_the_wrong_way_where_alpha_is_too_large() -> None:
    """αa = 1.5: w − c is multiplied by 1 − βa(1 − αa) = 1.5, Hessian-free by 1 − βa(1 − αa)² = 0.75."""
    words = STEP | {"perfedavg__lr_adapt": 0.75}
    ends = [
        float(
            quadratic("perfedavg", perfedavg__hessian_free=free, **words)
            .train({}, {"w": one(3.0)}, 1)
            .uploads["w"]
        )
        for free in (False, True)
    ]
    assert ends == pytest.approx([1 + 2 * 1.5, 1 + 2 * 0.75], abs=1e-3)


@pytest.mark.parametrize(("steps", "expected"), [(1, 2.6), (2, 2.28)])
def test_the_personal_model_is_a_step_on_the_training_data_away(steps: int, expected: float) -> None:
    client = quadratic("perfedavg", perfedavg__adapt_steps=steps, **STEP)
    models = client.models({}, {"w": one(3.0)})
    assert float(models["pm"].v) == pytest.approx(expected) and float(models["gm"].v) == 3


def problem() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    network = dnn((1, 8, 8), 10).double()
    x, y = torch.randn(30, 1, 8, 8, dtype=torch.float64), torch.arange(30) % 10
    return network, flatten(network).double(), x, y


def loss_of(network: nn.Module, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(functional_call(network, unflatten(theta, shapes_of(network)), (x,)), y)


def test_the_hessian_free_step_is_that_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the paper's network, in float64, with the batches that the client draws."""
    network, theta, x, y = problem()
    client = client_of(network, x, y, "perfedavg", perfedavg__hessian_free=True, batch_size=12, **STEP)
    monkeypatch.setattr("bayes_core.inference.plain.SHORT", 1e-5)
    found = client.train({}, {"w": theta[None]}, 1).uploads["w"][0]
    inner, outer, other = (next(iter(client.batches(1, name))) for name in ("inner", "outer", "curvature"))
    assert len({tuple(batch.tolist()) for batch in (inner, outer, other)}) == 3, "three independent batches"
    gradient = torch.func.grad(lambda w, batch: loss_of(network, w, x[batch], y[batch]))
    v = gradient(theta - 0.1 * gradient(theta, inner), outer)
    _, h = torch.func.jvp(lambda w: gradient(w, other), (theta,), (v,))
    torch.testing.assert_close(found, theta - 0.5 * (v - 0.1 * h), rtol=1e-6, atol=1e-6)
    assert (0.1 * h).norm() > 0.05 * v.norm(), "the term is there"


@pytest.mark.parametrize("length", [1.0, 1e-6])
def test_differences_in_float32_keep_their_digits_however_short_the_gradient(length: float) -> None:
    network, theta, x, y = problem()
    direction = torch.randn(theta.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    direction *= length / direction.norm()
    gradient = torch.func.grad(lambda w: loss_of(network, w, x, y))
    _, expected = torch.func.jvp(gradient, (theta,), (direction,))
    f = MeanLoss(network.float(), x.float(), y, categorical, {})
    found = f.hessian_times(theta.float(), direction.float(), torch.arange(30))
    assert (found - expected).norm() < 0.002 * expected.norm()


def test_dropped_units_are_the_same_at_both_ends() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 50), nn.Dropout(), nn.Tanh(), nn.Linear(50, 2))
    f = MeanLoss(network, torch.randn(20, 3), torch.arange(20) % 2, categorical, {})
    theta = flatten(network)
    direction = torch.randn(len(theta))
    assert f.hessian_times(theta, direction, torch.arange(20)).norm() < 10 * direction.norm()


def test_the_gradient_of_all_is_that_of_one_batch_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    network, theta, x, y = problem()
    f = MeanLoss(network, x, y, categorical, {})
    whole = f.gradient(theta, torch.arange(30))
    value = float(f.value)
    monkeypatch.setattr("bayes_core.inference.plain.TOGETHER", 7)
    torch.testing.assert_close(f.gradient_of_all(theta), whole)
    assert float(f.value) == pytest.approx(value)


@pytest.mark.parametrize("words", [{"optimizer": "adam"}, {"lr_global": 0.001}, {"adam_beta2": 0.9}])
def test_what_plain_sgd_has_not_is_refused(words: dict[str, object]) -> None:
    """Whoever writes optimizer=adam shall not get SGD, though it is the default of other methods."""
    key = next(iter(words)).replace("_", "-")
    with pytest.raises(SettingsError) as caught:
        settings_of("perfedavg", **words)
    assert str(caught.value) == (
        "method=perfedavg takes plain SGD steps at rates of its own (perfedavg.lr, perfedavg.lr-adapt); "
        f"leave {key} out."
    )
    settings_of("perfedavg", optimizer="sgd")
