"""Uploads far outside of the others: dropped, named, counted; honest clients that differ are not."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from harness import Outcome

from bayes_core.server.robust import Median, TrimmedMean
from fedbayes.protocol.settings import SettingsError
from strategies.pfedbayes import PFedBayes
from strategies.rounds.stages import outliers

Federate = Callable[..., Outcome]


class Killed(BaseException):
    """Ends the process, as far as a test can: nobody catches it."""


def exaggerating(number: int, since: int, factor: float, killed_in: int = -1) -> Callable[..., Message]:
    """From round `since` on this client goes `factor` times as far as it should."""

    def interfere(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and client == number:
            server_round = int(message.content["exchange"]["round"])  # type: ignore
            if server_round == killed_in:
                raise Killed
            if server_round >= since:
                base, w = message.content["w"], reply.content["w"]
                moved = {
                    key: base[key].numpy() + np.float32(factor) * (w[key].numpy() - base[key].numpy())  # type: ignore
                    for key in w  # type: ignore
                }
                reply.content["w"] = ArrayRecord({key: Array(row) for key, row in moved.items()})
        return reply

    return interfere


def silent(number: int, since: int) -> Callable[..., Message | None]:
    def interfere(client: int, message: Message, reply: Message) -> Message | None:
        training = message.metadata.message_type == "train" and client == number
        return None if training and message.content["exchange"]["round"] >= since else reply  # type: ignore

    return interfere


@pytest.mark.parametrize("method", ["pfedbayes", "fedavg"])
def test_an_exaggerated_update_is_dropped_named_and_counted(federate: Federate, method: str) -> None:
    run = federate(method=method, interfere=exaggerating(2, 3, 50))
    assert [row["clients_failed"] for row in run.rows[1:]] == ["0", "0", "1", "1"]
    assert [row["clients_ok"] for row in run.rows[1:]] == ["4", "4", "3", "3"]
    warnings = run.said("warning")
    assert len(warnings) == 2
    assert all(
        "Site 2 dropped from this round: an absurd update: it moved its weights by" in text
        for text in warnings
    )
    without = federate("without", method=method, interfere=silent(2, 3))
    assert torch.equal(run.tensors["w"], without.tensors["w"])


def test_in_the_first_round_too(federate: Federate) -> None:
    run = federate(rounds=1, interfere=exaggerating(1, 1, 1000))
    assert run.rows[1]["clients_failed"] == "1" and "absurd update" in run.said("warning")[0]
    assert run.tensors["w"][0].abs().max() < 1


def test_the_verdict_survives_a_kill_and_does_not_depend_on_the_order(federate: Federate) -> None:
    settings = {"rounds": 5}
    calm = federate("calm", interfere=exaggerating(2, 4, 30), **settings)
    shuffled = federate("shuffled", interfere=exaggerating(2, 4, 30), shuffle=7, **settings)
    with pytest.raises(Killed):
        federate("killed", interfere=exaggerating(2, 4, 30, killed_in=4), **settings)
    resumed = federate("killed", interfere=exaggerating(2, 4, 30), resume=True, **settings)
    assert calm.rows[4]["clients_failed"] == "1"
    assert calm.metrics == shuffled.metrics == resumed.metrics
    assert torch.equal(calm.tensors["w"], resumed.tensors["w"])


@pytest.mark.parametrize(
    "settings",
    [
        {"layout": "rotated", "method": "cfedbayes", "groups": 4, "clients": 8},
        {"layout": "rotated", "method": "pfedbayes", "clients_per_round": 1, "rounds": 12},
        {"layout": "labels", "method": "sfedbayes", "lr_lambda": 0.05, "sparsity_target": 0.2},
        {"layout": "labels", "method": "fedavg", "weighting": "examples"},
        {"layout": "rotated", "beta": 1.5, "personal_steps": 5},
    ],
    ids=lambda settings: settings.get("method", "extrapolated"),
)
def test_clients_that_merely_differ_stay_far_below_the_bound(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    shares: list[float] = []

    class Watched(outliers.Outliers):
        def judge(self, upload: torch.Tensor, base: torch.Tensor) -> None:
            scalars = outliers.scalars_of(upload, base, self.family)
            shares.extend(value / self.bound(name, base) for name, value in scalars.items())
            super().judge(upload, base)

    monkeypatch.setattr("strategies.rounds.stages.outliers.Outliers", Watched)
    run = federate(**{"rounds": 6, "size": "10+4", "local_steps": 10} | settings)
    assert {row["clients_failed"] for row in run.rows} <= {"", "0"}
    assert max(shares) < 0.25


def closing(number: int) -> Callable[..., Message]:
    """λ = 0 everywhere, in every round."""

    def interfere(client: int, message: Message, reply: Message) -> Message:
        if client == number and "w" in reply.content:
            rows = {key: array.numpy() for key, array in reply.content["w"].items()}  # type: ignore
            rows["lambda"] = np.zeros_like(rows["lambda"])
            reply.content["w"] = ArrayRecord({key: Array(row) for key, row in rows.items()})
        return reply

    return interfere


def test_a_site_that_closes_all_gates_is_dropped(federate: Federate) -> None:
    run = federate(method="sfedbayes", interfere=closing(2))
    assert [row["clients_failed"] for row in run.rows[1:]] == ["1"] * 4
    assert "opened or closed its gates" in run.said("warning")[0]
    assert float(run.tensors["w"][2].mean()) > 0.45


@pytest.mark.parametrize("method", ["pfedbayes", "sfedbayes", "cfedbayes"])
@pytest.mark.parametrize("rule", ["trimmed-mean", "median", "krum"])
def test_robust_sums_run_in_any_order_and_resist_a_flipped_sign(
    federate: Federate, method: str, rule: str
) -> None:
    words = {"method": method, "aggregation": rule, "clients": 5, "rounds": 2}
    calm, shuffled = federate("calm", **words), federate("shuffled", shuffle=3, **words)
    assert calm.metrics == shuffled.metrics
    if method == "pfedbayes":  # λ cannot go eight times as far
        flipped = federate("flipped", interfere=exaggerating(2, 1, -8), **words)
        mean = federate("mean", interfere=exaggerating(2, 1, -8), **words | {"aggregation": "mean"})
        away = [float((run.tensors["w"][0] - calm.tensors["w"][0]).norm()) for run in (flipped, mean)]
        assert away[0] < away[1]


def elsewhere(number: int) -> Callable[..., Message]:
    """What it has learned, as if it had chosen the other of two clusters."""

    def interfere(client: int, message: Message, reply: Message) -> Message:
        if client == number and "w" in reply.content and message.content["exchange"]["round"] >= 1:  # type: ignore
            reply.content["report"]["cluster"] = 1 - reply.content["report"]["cluster"]  # type: ignore
        return reply

    return interfere


TEN = {"clients": 10, "rounds": 10, "eval_every": 10, "size": "10+5", "local_steps": 20, "batch_size": 100}


@pytest.mark.parametrize(
    ("settings", "attack"),
    [
        ({"method": "cfedbayes", "layout": "rotated", "groups": 2, "clusters": 2}, elsewhere(9)),
        ({"method": "pfedbayes", "layout": "iid"}, exaggerating(9, 1, -8)),
    ],
    ids=["claims the other cluster", "flips its sign"],
)
def test_one_of_ten_inside_the_bounds_costs_the_median_five_points_at_most(
    federate: Federate, settings: dict[str, object], attack: Callable[..., Message]
) -> None:
    """The mean suffers; experiments/attacks.py has the other rules, and more than one of ten."""
    accuracy = {}
    for rule in ("mean", "median"):
        for name, interfere in (("calm", None), ("attacked", attack)):
            run = federate(f"{rule}-{name}", interfere=interfere, aggregation=rule, **TEN | settings)
            assert {row["clients_failed"] for row in run.rows[1:]} == {"0"}, "nothing about it is absurd"
            accuracy[rule, name] = float(run.rows[-1]["gm_accuracy"])
    calm = max(accuracy["mean", "calm"], accuracy["median", "calm"])
    assert accuracy["median", "attacked"] > calm - 0.05, accuracy
    assert accuracy["mean", "attacked"] < calm - 0.1, accuracy


@pytest.mark.parametrize("key", ["weighting=examples", "aggregation-confidence=weight"])
def test_a_robust_sum_hears_nobody_who_counts_for_more(federate: Federate, key: str) -> None:
    name, _, value = key.partition("=")
    with pytest.raises(SettingsError, match="aggregation=median counts every site once"):
        federate(aggregation="median", **{name.replace("-", "_"): value})


def test_buffers_have_robust_sums_too() -> None:
    assert isinstance(PFedBayes(aggregation="krum").buffers_by(torch.zeros(3)), TrimmedMean)
    assert isinstance(PFedBayes(aggregation="median").buffers_by(torch.zeros(3)), Median)
