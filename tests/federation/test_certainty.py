"""Uncertainty, calibration and confidence in a whole federation: columns, stores, weights."""

import math
from collections.abc import Callable

import pytest
import torch
from flwr.app import Message, MetricRecord
from harness import Outcome
from safetensors.torch import load_file

from bayes_core import mean
from fedbayes.protocol.codec import decode
from fedbayes.protocol.settings import SettingsError

Federate = Callable[..., Outcome]


def test_uncertainty_is_measured_pooled_and_falls_with_training(federate: Federate) -> None:
    run = federate(rounds=6, local_steps=20)
    first, last = run.rows[0], run.rows[-1]
    for model in ("pm", "gm"):
        entropy, information = float(last[f"{model}_entropy"]), float(last[f"{model}_mutual_information"])
        assert 0 < information < entropy < float(first[f"{model}_entropy"]) < math.log(10)
    each = [float(row["pm_entropy"]) for row in run.clients if row["round"] == "6"]
    assert float(last["pm_entropy"]) == pytest.approx(sum(each) / 4, abs=2e-6), (
        "all have as many test examples"
    )
    plain = federate("plain", method="fedavg").rows[-1]
    assert float(plain["gm_mutual_information"]) == 0 < float(plain["gm_entropy"])


def test_temperature_scaling_is_reported_before_and_after_and_kept_with_the_model(federate: Federate) -> None:
    settings = {"validation_fraction": 0.25, "local_steps": 20}
    run = federate("scaled", temperature_scaling=True, **settings)
    unscaled = federate("unscaled", **settings)
    last = run.rows[-1]
    for model in ("pm", "gm"):
        assert last[f"{model}_nll"] == unscaled.rows[-1][f"{model}_nll"], (
            "training and predictive stay as they are"
        )
        assert last[f"{model}_scaled_nll"] != last[f"{model}_nll"] and last[f"{model}_scaled_ece"]
        assert not unscaled.rows[-1][f"{model}_scaled_nll"] and not unscaled.rows[-1][f"{model}_temperature"]
    temperatures = [float(row["pm_temperature"]) for row in run.clients if row["round"] == "4"]
    assert float(last["pm_temperature"]) == pytest.approx(sum(temperatures) / 4, abs=2e-6)
    kept = [
        float(
            load_file(run.folder.parent / "state" / "scaled" / str(site) / "personal.safetensors")[
                "temperature"
            ]
        )
        for site in range(4)
    ]
    assert all(0.05 < one < 20 for one in kept) and len(set(kept)) == 4


def test_what_is_held_out_is_not_trained_on(federate: Federate) -> None:
    messages = []

    def listen(number: int, message: Message, reply: Message) -> Message:
        if "hello" in reply.content:
            messages.append(reply.content["hello"]["n_train"])
        return reply

    federate("whole", interfere=listen)
    federate("held", interfere=listen, validation_fraction=0.25)
    assert messages == [20] * 4 + [15] * 4


def test_scaling_without_validation_data_is_refused(federate: Federate) -> None:
    with pytest.raises(SettingsError, match="takes a validation-fraction above 0"):
        federate(temperature_scaling=True)


@pytest.mark.parametrize("method", ["pfedbayes", "fedavg"])
def test_the_least_certain_client_is_left_out(federate: Federate, method: str) -> None:
    uploads: dict[int, torch.Tensor] = {}

    def listen(number: int, message: Message, reply: Message) -> Message:
        if "w" in reply.content:
            rows = reply.content["w"]
            uploads[number] = decode({key: array.numpy() for key, array in rows.items()}, list(rows))  # type: ignore
        return reply

    settings = {"method": method, "rounds": 1, "local_steps": 10}
    run = federate("out", interfere=listen, aggregation_confidence=0.25, **settings)
    said = {row["site"]: float(row["uncertainty"]) for row in run.clients if row["round"] == "1"}
    surest = sorted(said, key=said.__getitem__)[:3]
    assert torch.equal(run.tensors["w"], mean([uploads[int(site)] for site in sorted(surest)]))
    status = {row["site"]: row["status"] for row in run.clients if row["round"] == "1"}
    assert status == {site: "ok" if site in surest else "left out" for site in said}
    shuffled = federate("shuffled", shuffle=5, aggregation_confidence=0.25, **settings)
    assert torch.equal(run.tensors["w"], shuffled.tensors["w"])

    weighted = federate("weight", aggregation_confidence="weight", **settings)
    shares = [math.exp(-said[str(number)]) for number in range(4)]
    expected = mean([uploads[number] for number in range(4)], shares)
    torch.testing.assert_close(weighted.tensors["w"], expected, rtol=0, atol=1e-6)

    off = federate("off", **settings)
    assert torch.equal(off.tensors["w"], mean([uploads[number] for number in range(4)]))
    assert {row["uncertainty"] for row in off.clients} == {""}, "nothing is said unless it is asked for"


def test_clients_with_random_labels_are_the_least_certain(federate: Federate) -> None:
    settings = {"rounds": 3, "local_steps": 20, "personal_steps": 5, "zeta": 0.5, "size": "20+4"}
    run = federate(noisy_clients=2, clients=6, aggregation_confidence=0.34, **settings)
    said = {row["site"]: float(row["uncertainty"]) for row in run.clients if row["round"] == "3"}
    assert set(sorted(said, key=said.__getitem__)[4:]) == {"0", "1"}


def test_with_clusters_round_0_compares_everybody(federate: Federate) -> None:
    settings = {"method": "cfedbayes", "clusters": 2, "layout": "rotated", "size": "4+4", "rounds": 2}
    run = federate(clients=6, aggregation_confidence=0.34, **settings)
    status = [[row["status"] for row in run.clients if row["round"] == number] for number in "012"]
    assert [one.count("left out") for one in status] == [0, 2, 2] and run.state == "finished"
    assert all(row["uncertainty"] for row in run.clients)


def test_an_impossible_uncertainty_is_dropped_named_and_counted(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 2 and "report" in reply.content:
            reply.content["report"] = MetricRecord({"loss": 1.0, "uncertainty": -1.0})
        return reply

    run = federate(interfere=interfere, aggregation_confidence="weight")
    assert [(row["clients_ok"], row["clients_failed"]) for row in run.rows[1:]] == [("3", "1")] * 4
    assert run.said("warning")[0] == (
        "Site 2 dropped from this round: the uncertainty -1.0 instead of a number of at least 0."
    )


def test_where_nothing_is_sent_the_run_is_refused_and_leaves_no_folder(federate: Federate) -> None:
    with pytest.raises(SettingsError, match="with method=local they send nothing"):
        federate(method="local", aggregation_confidence="weight")
    assert not federate.latest.folder.exists()  # type: ignore[attr-defined]
