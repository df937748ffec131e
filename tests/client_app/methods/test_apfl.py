"""APFL's step by hand: where gradients are taken, when α moves, and what the personal model mixes."""

import pytest
import torch
from quadratic import one, quadratic

from strategies.apfl import APFL
from strategies.rounds.state import Came, State, Upload

STEP = {"local_steps": 1, "apfl__lr": 0.1}


def state_of(v: float, alpha: float) -> dict[str, torch.Tensor]:
    return {"v": one(v), "alpha": torch.tensor(alpha)}


def test_one_batch_by_hand() -> None:
    """v̄ = 2.5, ∇f(v̄) = 3: w 2 − 0.1·2, v 3 − 0.1·½·3, α ½ − 0.1·1·3."""
    trained = quadratic("apfl", **STEP).train(state_of(3.0, 0.5), {"w": one(2.0)}, 1)
    assert float(trained.uploads["w"]) == pytest.approx(1.8)
    assert float(trained.state["v"]) == pytest.approx(2.85)
    assert float(trained.state["alpha"]) == trained.report["mixture"] == pytest.approx(0.2)


def test_alpha_moves_on_the_first_batch_alone() -> None:
    trained = quadratic("apfl", **STEP | {"local_steps": 3}).train(state_of(3.0, 0.5), {"w": one(2.0)}, 1)
    w, v, alpha = 1.8, 2.85, 0.2
    for _ in range(2):
        mixed = alpha * v + (1 - alpha) * w
        w, v = w - 0.1 * 2 * (w - 1), v - 0.1 * alpha * 2 * (mixed - 1)
    assert float(trained.uploads["w"]) == pytest.approx(w)
    assert float(trained.state["v"]) == pytest.approx(v)
    assert float(trained.state["alpha"]) == pytest.approx(alpha)


@pytest.mark.parametrize(("v", "w", "alpha"), [(9.0, 2.0, 0.0), (1.0, 20.0, 1.0)])
def test_alpha_stays_a_share(v: float, w: float, alpha: float) -> None:
    """One of the two networks is far from the optimum, which is 1: it counts for nothing."""
    trained = quadratic("apfl", **STEP).train(state_of(v, 0.5), {"w": one(w)}, 1)
    assert float(trained.state["alpha"]) == alpha


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_ends_of_the_mixture(alpha: float) -> None:
    """α = 0 leaves v where it is; with α = 1, v is trained alone."""
    trained = quadratic("apfl", **STEP).train(state_of(3.0, alpha), {"w": one(2.0)}, 1)
    assert float(trained.state["v"]) == pytest.approx(3 - 0.1 * alpha * 4)


def test_the_personal_model_mixes_with_the_received_weights() -> None:
    client = quadratic("apfl", apfl__mixture=0.25)
    start = client.start({"w": one(4.0)})
    assert float(start["v"]) == 4 and float(start["alpha"]) == 0.25
    models = client.models(state_of(4.0, 0.25), {"w": one(8.0)})
    assert float(models["pm"].v) == 7 and float(models["gm"].v) == 8


def test_the_server_tells_each_share() -> None:
    uploads = [Upload("a", 1, {"loss": 1.0, "mixture": 0.25}), Upload("b", 1, {"loss": 1.0})]
    assert APFL().describe(State({}), Came(1, uploads=uploads)) == ({}, {"a": {"mixture": 0.25}})
