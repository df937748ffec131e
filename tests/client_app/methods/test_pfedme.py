"""pFedMe's round by hand, and its limits."""

import pytest
import torch
from quadratic import client_of, one, quadratic, settings_of
from torch import nn

from fedbayes.protocol.settings import SettingsError

ROUND = {"local_steps": 1, "pfedme__lr": 0.01, "pfedme__lr_personal": 0.05, "pfedme__personal_steps": 2}


def test_one_batch_by_hand() -> None:
    """θ: 3 − 0.05·4 = 2.8, then 2.8 − 0.05·(3.6 − 15·0.2) = 2.77; w_i: 3 − 0.01·15·0.23 = 2.9655."""
    client = quadratic("pfedme", **ROUND)
    trained = client.train(client.start({"w": one(0.0)}), {"w": one(3.0)}, 1)
    assert float(trained.state["theta"]) == pytest.approx(2.77)
    assert float(trained.uploads["w"]) == pytest.approx(2.9655)


def test_theta_runs_on_to_the_next_batch_about_the_moved_weights() -> None:
    client = quadratic("pfedme", **ROUND | {"local_steps": 2})
    trained = client.train(client.start({"w": one(0.0)}), {"w": one(3.0)}, 1)
    theta, w = 2.77, 2.9655
    for _ in range(2):
        theta -= 0.05 * (2 * (theta - 1) + 15 * (theta - w))
    assert float(trained.state["theta"]) == pytest.approx(theta)
    assert float(trained.uploads["w"]) == pytest.approx(w - 0.15 * (w - theta))


def test_theta_starts_at_the_received_weights_in_every_round() -> None:
    client = quadratic("pfedme", **ROUND)
    states = [client.start({"w": one(value)}) for value in (0.0, 9.0)]
    ends = [client.train(state, {"w": one(3.0)}, 1).state["theta"] for state in states]
    assert torch.equal(*ends) and float(ends[0]) == pytest.approx(2.77)


def test_many_steps_solve_the_personal_problem() -> None:
    """(ac + λw)/(a + λ)."""
    client = quadratic("pfedme", **ROUND | {"pfedme__personal_steps": 200})
    trained = client.train(client.start({"w": one(0.0)}), {"w": one(3.0)}, 1)
    assert float(trained.state["theta"]) == pytest.approx((2 * 1 + 15 * 3) / (2 + 15))


def test_the_models_are_theta_and_the_received_weights() -> None:
    client = quadratic("pfedme")
    models = client.models({"theta": one(2.0)}, {"w": one(3.0)})
    assert float(models["pm"].v) == 2 and float(models["gm"].v) == 3


@pytest.mark.parametrize("key", ["pfedme.lr", "pfedme.lr-personal"])
def test_steps_that_would_diverge_are_refused(key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of("pfedme", **{key.replace(".", "__").replace("-", "_"): 0.2})
    assert str(caught.value).startswith(f"{key}=0.2 times pfedme.penalty=15 must stay below 2")


def test_batch_norm_has_statistics_of_the_personal_network() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    client = client_of(network, torch.randn(40, 3), torch.arange(40) % 2, "pfedme", local_steps=3)
    w = {"w": torch.randn(1, 34)}
    trained = client.train(client.start(w), w, 1)
    assert int(trained.state["buffer.1.num_batches_tracked"]) == 15
    assert trained.state["theta"].shape == trained.uploads["w"].shape == (1, 34)
