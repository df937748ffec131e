"""FedAvg with fine-tuning: the personal model is the received one after further steps, and nothing else changes."""

import pytest
import torch
from quadratic import client_of, one, quadratic
from torch import nn

from bayes_core.predict.predictor import WeightsPredictor

SGD = {"optimizer": "sgd", "lr_global": 0.1}


def test_two_steps_by_hand() -> None:
    """3 → 3 − 0.1·2·2 = 2.6 → 2.6 − 0.1·2·1.6 = 2.28."""
    client = quadratic("finetune", finetune__adapt_steps=2, **SGD)
    models = client.models(client.start({"w": one(3.0)}), {"w": one(3.0)})
    assert float(models["pm"].v) == pytest.approx(2.28) and float(models["gm"].v) == 3


def test_training_is_that_of_fedavg() -> None:
    clients = [quadratic(method, local_steps=5, **SGD) for method in ("finetune", "fedavg")]
    tuned, plain = (client.train(client.start({"w": one(3.0)}), {"w": one(3.0)}, 1) for client in clients)
    assert torch.equal(tuned.uploads["w"], plain.uploads["w"]) and tuned.state == plain.state == {}


def test_the_model_is_that_of_the_weights_and_has_statistics_of_its_own_data() -> None:
    """Whoever asks, however often, and whatever the running statistics were."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    x, y = torch.randn(40, 3) + 5, torch.arange(40) % 2
    client = client_of(network, x, y, "finetune")
    w = {"w": torch.randn(1, 34)}
    state, found = client.start(w), []
    for _ in range(2):
        torch.manual_seed(1)  # as the client app does
        found.append(client.models(state, w)["pm"])
    first, second = found
    assert isinstance(first, WeightsPredictor) and torch.equal(first.v, second.v)
    assert all(torch.equal(first.buffers[name], second.buffers[name]) for name in first.buffers)
    inside = x @ first.v[0, :12].view(4, 3).T + first.v[0, 12:16]
    torch.testing.assert_close(first.buffers["1.running_mean"], inside.mean(0), rtol=1e-4, atol=1e-4)
    assert int(state["buffer.1.num_batches_tracked"]) == 0, "what is kept has not moved"
