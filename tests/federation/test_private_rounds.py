"""Runs with client-level differential privacy, from end to end in this process."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message
from harness import Outcome

from bayes_core.privacy import epsilon_of
from fedbayes.protocol.streams import seed_of
from server_app.stored import load_checkpoint
from strategies.rounds.stages import private

Federate = Callable[..., Outcome]
METHODS = [
    "pfedbayes",
    "sfedbayes",
    "fedavg",
    "fedprox",
    "finetune",
    "perfedavg",
    "pfedme",
    "ditto",
    "apfl",
    "fedper",
    "fedrep",
    "fedpa",
]


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "NORMAL", np.random.default_rng(1).standard_normal)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_takes_a_mean_can_be_private(federate: Federate, method: str) -> None:
    run = federate(method=method, rounds=2, dp_noise=5.0)
    assert [float(row["epsilon"]) for row in run.rows if row["epsilon"]] == pytest.approx(
        [epsilon_of(math.sqrt(t) / 5, 1e-5) for t in (1, 2)], abs=1e-6
    )
    assert run.rows[-1]["clients_failed"] == "0"


def test_a_run_ends_saved_before_the_round_that_would_pass_its_budget(federate: Federate) -> None:
    budget = epsilon_of(math.sqrt(2) / 5, 1e-5) + 1e-9
    run = federate(rounds=5, dp_noise=5.0, dp_epsilon=budget)
    assert [row["round"] for row in run.rows] == ["0", "1", "2"]
    assert run.state == "finished"
    (note,) = [words for words in run.said("note") if "budget" in words]
    assert note.startswith("The privacy budget is spent: ε = ")
    assert float(run.rows[-1]["epsilon"]) <= budget + 1e-6  # as it is rounded
    assert run.rows[-1]["pm_accuracy"]


def test_a_resumed_run_sends_the_same_noised_distribution(federate: Federate) -> None:
    first = federate(rounds=1, dp_noise=5.0)
    before = {name: tensor.clone() for name, tensor in first.tensors.items()}
    heard: list[Message] = []

    def listen(site: int, asked: Message, reply: Message) -> Message:
        heard.append(asked)
        return reply

    second = federate(rounds=2, dp_noise=5.0, resume=True, interfere=listen)
    assert [float(row["epsilon"]) for row in second.rows if row["epsilon"]] == pytest.approx(
        [epsilon_of(math.sqrt(t) / 5, 1e-5) for t in (1, 2)], abs=1e-6
    )
    sent = next(message for message in heard if "w" in message.content.array_records)
    mu = sent.content.array_records["w"]["mu"].numpy()
    assert np.array_equal(mu, before["w"][0].numpy())


def test_who_is_asked_hangs_on_each_site_alone(federate: Federate) -> None:
    """The two lowest of the numbers that seed, round and name give; the sum is divided by two, whoever answers."""
    run = federate(rounds=3, eval_every=99, dp_noise=5.0, clients_per_round=2, seed=3)
    for number in (1, 2, 3):
        asked = {row["site"] for row in run.clients if row["round"] == str(number) and row["status"] == "ok"}
        drawn = sorted("0123", key=lambda site: seed_of(3, "sample", number, 0, site))
        assert asked == set(drawn[:2])
    checkpoint = load_checkpoint(run.folder)
    assert checkpoint and checkpoint[2]["stages"]["private"]["planned"] == 2


def test_without_it_the_column_is_empty(federate: Federate) -> None:
    run = federate(rounds=1)
    assert {row["epsilon"] for row in run.rows} == {""}
