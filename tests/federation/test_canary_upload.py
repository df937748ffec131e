"""A canary attack on what really leaves a site: the ClientApp's replies to one and the same message.

Two sites have the same examples, and one of them the canary beside these. The attacker, the coordinator say, knows all
of it but which of the two answers, and chooses his rule. The mechanism alone, also with Poisson batches, has the same
attack in tests/bayes_core/inference/test_canary.py.
"""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from harness import Outcome
from inprocess import InProcessGrid
from torch import nn

from bayes_core.flat import shapes_of
from bayes_core.inference.plain import nll_gradient
from bayes_core.privacy import delta_of, epsilon_of
from client_app import examples
from client_app.site import forget
from fedbayes.protocol import messages as key

TRIALS, STEPS, DELTA, NOISE = 400, 2, 0.01, 1.0
N = 8  # examples beside the canary
CANARY = [50.0, -50.0, 50.0]


@pytest.fixture
def sites(tmp_path: Path) -> str:
    """Sites `with` and `without` the canary; both with the same test examples."""
    random, folder = np.random.default_rng(1), tmp_path / "sites"
    x, y = random.normal(size=(N, 3)).astype(np.float32), np.array([0, 1] * (N // 2))
    folder.mkdir()
    for name, x_train, y_train in (
        ("with", np.concatenate([x, np.array([CANARY], np.float32)]), np.append(y, 0)),
        ("without", x, y),
    ):
        np.savez(folder / f"{name}.npz", x_train=x_train, y_train=y_train, x_test=x, y_test=y)
    return str(folder)


def replies(grid: InProcessGrid, asked: Message, trials: int) -> np.ndarray:
    """The means that a site uploads when it is asked the same in so many runs."""
    found = []
    for number in range(trials):
        content = {name: record for name, record in asked.content.items() if name != key.EXCHANGE}
        said = {**asked.content[key.EXCHANGE], key.UUID: f"run-{number}"}
        again = Message(
            RecordDict({**content, key.EXCHANGE: ConfigRecord(said)}), asked.metadata.dst_node_id, "train"
        )
        (reply,) = grid.pull_messages(grid.push_messages([again]))
        found.append(reply.content["w"]["mu"].numpy().reshape(-1))
    return np.array(found)


def test_a_canary_is_found_no_more_often_than_epsilon_allows(
    federate: Callable[..., Outcome], sites: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    monkeypatch.setattr(examples, "NORMAL", np.random.default_rng(2).standard_normal)
    grid = InProcessGrid({}, 2)
    federate(
        dataset=sites, grid=grid, model="experiments.linear:linear", scale="none", rounds=1, local_steps=STEPS,
        personal_steps=1, rho_init=-5.0, dp_example_noise=NOISE, dp_example_lr=0.01, eval_every=99,
    )  # fmt: skip
    asked = {one.metadata.dst_node_id: one for one in grid.sent if one.metadata.message_type == "train"}
    there, not_there = (replies(grid, asked[node], TRIALS) for node in sorted(asked))
    w = torch.from_numpy(asked[min(asked)].content["w"]["mu"].numpy().reshape(-1).copy())
    network = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    _, pull = nll_gradient(network, shapes_of(network), w, {}, torch.tensor([CANARY]), torch.tensor([0]))

    def scores(uploads: np.ndarray, n: int) -> np.ndarray:
        """A step is of the mean over n examples, which hello has told."""
        return -n * (uploads - w.numpy()) @ pull.numpy()

    found_by, alarms_by = scores(there, N + 1), scores(not_there, N)
    m, gains = math.sqrt(STEPS) / NOISE, []
    for threshold in np.quantile(alarms_by, [0.5, 0.7, 0.9, 0.95, 0.99]):
        found, alarms = (found_by > threshold).mean(), (alarms_by > threshold).mean()
        for epsilon in (epsilon_of(m, DELTA), 0.0, 0.5, 1.0):  # the mechanism has a δ for each ε
            assert found - error(found) <= math.exp(epsilon) * (alarms + error(alarms)) + delta_of(epsilon, m)
        gains.append(found - alarms)
    assert max(gains) > 0.3, "an attack that finds nothing shows nothing"


def error(share: float) -> float:
    """Four standard deviations, so that the test fails by chance once in ten thousand."""
    return 4 * math.sqrt(max(share * (1 - share), 1 / TRIALS) / TRIALS)
