"""Ditto's step by hand; without a penalty it is `local` beside FedAvg, with a large one the server's weights."""

import pytest
import torch
from quadratic import client_of, one, quadratic
from torch import nn

from bayes_core.flat import flatten
from client_app.method import Received

SGD = {"optimizer": "sgd", "lr_global": 0.1, "lr_personal": 0.1}


def test_one_step_by_hand() -> None:
    """v: 3 − 0.1·(2·2 + 1·(3 − 2)) = 2.5; w: 2 − 0.1·2·1 = 1.8."""
    client = quadratic("ditto", local_steps=1, ditto__penalty=1.0, **SGD)
    state = client.start({"w": one(3.0)})
    trained = client.train(state, {"w": one(2.0)}, 1)
    assert float(trained.state["theta"]) == pytest.approx(2.5)
    assert float(trained.uploads["w"]) == pytest.approx(1.8)
    models = client.models(trained.state, {"w": one(2.0)})
    assert float(models["pm"].v) == pytest.approx(2.5) and float(models["gm"].v) == 2


def test_the_anchor_is_what_was_received_in_every_step() -> None:
    client = quadratic("ditto", local_steps=2, personal_steps=2, ditto__penalty=1.0, **SGD)
    v = 3.0
    for _ in range(4):
        v -= 0.1 * (2 * (v - 1) + (v - 2))
    trained = client.train(client.start({"w": one(3.0)}), {"w": one(2.0)}, 1)
    assert float(trained.state["theta"]) == pytest.approx(v)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_without_a_penalty_it_is_local_beside_fedavg(optimizer: str) -> None:
    """Bit for bit, over rounds in which the server's weights move."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    words = {"optimizer": optimizer, "batch_size": 7}
    ditto = client_of(network, x, y, "ditto", ditto__penalty=0.0, **words)
    local, fedavg = (client_of(network, x, y, method, **words) for method in ("local", "fedavg"))
    w = {"w": flatten(network)[None]}
    own, alone, shared = ditto.start(w), local.start(w), fedavg.start(w)
    for number in (1, 2):
        trained, expected = ditto.train(own, w, number), fedavg.train(shared, w, number)
        own, alone, shared = trained.state, local.train(alone, w, number).state, expected.state
        assert own.keys() == alone.keys() and all(torch.equal(own[name], alone[name]) for name in own)
        assert torch.equal(trained.uploads["w"], expected.uploads["w"])
        w = {"w": expected.uploads["w"]}


def test_a_large_penalty_leads_to_the_servers_weights() -> None:
    client = quadratic("ditto", local_steps=60, ditto__penalty=2000.0, **SGD | {"lr_personal": 4e-4})
    trained = client.train(client.start({"w": one(3.0)}), {"w": one(2.0)}, 1)
    assert float(trained.state["theta"]) == pytest.approx(2.0, abs=2e-3)


def test_statistics_go_with_the_weights_that_are_sent() -> None:
    """Batch norm: those of w_i are sent, those of v stay."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    ditto, fedavg = (client_of(network, x, y, method) for method in ("ditto", "fedavg"))
    w = torch.randn(1, len(flatten(network)))
    statistics = {"1.running_mean": torch.ones(8), "1.running_var": torch.ones(8)}
    received = Received({"w": w}, {"w": statistics})
    state = ditto.start(Received({"w": -w}, {"w": statistics}))
    trained, expected = ditto.train(state, received, 1), fedavg.train(fedavg.start(received), received, 1)
    assert trained.buffers is not None
    for name in statistics:
        assert torch.equal(trained.buffers[name], expected.state[f"buffer.{name}"])
        assert not torch.equal(trained.buffers[name], trained.state[f"buffer.{name}"])
    gm = ditto.models(trained.state, received)["gm"]
    assert torch.equal(gm.buffers["1.running_mean"], torch.ones(8))
    alone = ditto.models(trained.state, {"w": w})["gm"]  # buffers=local
    inside = x @ w[0, :32].view(8, 4).T + w[0, 32:40]
    torch.testing.assert_close(alone.buffers["1.running_mean"], inside.mean(0), rtol=1e-4, atol=1e-4)
