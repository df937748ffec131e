"""`bayesian = head`: a whole federation in which the other weights are plain, as FedAvg's."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from harness import Outcome

from client_app.data import load
from client_app.site import forget
from client_app.store import read
from fedbayes.errors import ModelError
from fedbayes.model.adapt import adapt
from fedbayes.model.find import find_model
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, SettingsError, defaults
from strategies.pfedbayes import PFedBayes
from strategies.rounds.roster import StrategyError

Federate = Callable[..., Outcome]
BODY, HEAD, HEADER = 64 * 100 + 100, 100 * 10 + 10, 128


class Killed(BaseException):
    """Ends the process, as far as a test can: nobody catches it."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget()
    yield
    forget()


@pytest.mark.parametrize(("method", "rows"), [("pfedbayes", 2), ("sfedbayes", 3), ("cfedbayes", 2)])
def test_bytes_and_the_distribution_are_those_of_the_head(federate: Federate, method: str, rows: int) -> None:
    run = federate(method=method, bayesian="head", rounds=1, clusters=1)
    floats = rows * (4 * HEAD + HEADER) + 4 * BODY + HEADER
    assert {int(run.rows[1][f"bytes_{way}"]) // 4 for way in ("up", "down")} == {floats}
    name = "u0" if method == "cfedbayes" else "w"
    assert run.tensors[name].shape == (rows, HEAD) and run.tensors["body"].shape == (1, BODY)
    start = next(one for one in run.events if one["event"] == "start")
    assert start["about"][0] == "Model dnn: 1,010 Bayesian weights, 6,500 plain."
    half = federate("half", method=method, bayesian="head", rounds=1, clusters=1, wire="bfloat16")
    assert int(half.rows[1]["bytes_up"]) // 4 == rows * (2 * HEAD + HEADER) + 2 * BODY + HEADER


def test_a_frozen_backbone_costs_no_bytes(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    run = federate(model="networks_of_users:half_frozen", rounds=1)
    weights = 16 * 10 + 10
    assert run.tensors["w"].shape == (2, weights)
    assert int(run.rows[1]["bytes_up"]) // 4 == 2 * (4 * weights + HEADER)
    _, kept = read(run.folder.parent / "state" / run.folder.name / "0" / "personal.safetensors")
    sizes = {name: tensor.numel() for name, tensor in kept.items()}
    assert sizes.pop("q") == 2 * weights
    assert set(sizes.values()) == {2, 4 * weights}, "steps and moments: nothing of the frozen part is kept"


def test_low_rank_adapters_learn_and_are_all_that_is_sent(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    run = federate(model="networks_of_users:adapted", **LEARNS)
    weights = 2 * (64 + 32) + 32 * 10 + 10
    assert run.tensors["w"].shape == (2, weights)
    assert int(run.rows[1]["bytes_up"]) // 4 == 2 * (4 * weights + HEADER)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.7
    start = next(one for one in run.events if one["event"] == "start")
    assert start["about"][0].endswith(f"{weights} Bayesian weights, 2,080 frozen.")


LEARNS = {
    "rounds": 8,
    "local_steps": 10,
    "size": "20+20",
    "lr_personal": 0.005,
    "zeta": 0.1,
    "lr_global": 0.005,
}


@pytest.mark.parametrize("method", ["pfedbayes", "sfedbayes", "cfedbayes"])
def test_it_learns_and_what_is_kept_predicts_as_was_measured(federate: Federate, method: str) -> None:
    run = federate(method=method, bayesian="head", clusters=2, lambda_init=0.9, **LEARNS)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.75
    assert not torch.equal(
        run.tensors["body"], federate("one", method=method, bayesian="head", rounds=1).tensors["body"]
    )
    settings = Settings.parse(defaults() | {"size": "20+20"})
    told = {row["site"]: row for row in run.clients if row["round"] == "8"}
    for number in range(4):
        data = load(settings, number, 4)
        personal = PersonalModel.load(run.folder.parent / "state" / "run" / str(number))
        x = ((data.x_test + 1) * 8).to(torch.uint8)
        right = float((personal.point_probabilities(x).argmax(-1) == data.y_test).double().mean())
        assert right == pytest.approx(float(told[str(number)]["pm_point_accuracy"]), abs=1e-5)
        assert set(personal.state_dict()) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    shared = find_model("run/global" if method != "cfedbayes" else "run/global-0", run.folder.parent)
    torch.testing.assert_close(shared.state_dict()["1.weight"].reshape(-1), run.tensors["body"][0, :6400])


@pytest.mark.parametrize(("method", "rows"), [("pfedbayes", 2), ("sfedbayes", 3), ("cfedbayes", 2)])
def test_plain_weights_that_stay_at_each_client(federate: Federate, method: str, rows: int) -> None:
    """Nothing of them is sent; they differ from client to client, and the state with them predicts as was measured."""
    words = {
        "method": method,
        "bayesian": "head",
        "plain_weights": "personal",
        "lambda_init": 0.9,
        "clusters": 1,
    }
    run = federate(**words, **LEARNS)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.75
    assert {int(run.rows[1][f"bytes_{way}"]) // 4 for way in ("up", "down")} == {rows * (4 * HEAD + HEADER)}
    assert "body" not in run.tensors
    settings = Settings.parse(defaults() | {"size": "20+20"})
    told = {row["site"]: row for row in run.clients if row["round"] == "8"}
    bodies = []
    for number in range(4):
        data = load(settings, number, 4)
        folder = run.folder.parent / "state" / "run" / str(number)
        assert not (folder / "model.safetensors").exists(), "the state has all of it"
        personal = PersonalModel.load(folder)
        right = (
            personal.point_probabilities(((data.x_test + 1) * 8).to(torch.uint8)).argmax(-1) == data.y_test
        )
        assert float(right.double().mean()) == pytest.approx(
            float(told[str(number)]["pm_point_accuracy"]), abs=1e-5
        )
        bodies.append(personal.state_dict()["1.weight"])
    start = build("dnn", tuple(data.x_train.shape[1:]), 10, 1).state_dict()["1.weight"]
    assert all(0 < float((body - start).abs().mean()) < 0.1 for body in bodies)
    assert not torch.equal(bodies[0], bodies[1])
    with pytest.raises(ModelError, match="no global model to be used alone: with plain-weights=personal"):
        find_model("run/global" if method != "cfedbayes" else "run/global-0", run.folder.parent)


def test_own_plain_weights_after_a_kill_and_at_a_new_site(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 3 and number == 2:
            raise Killed
        return reply

    words = {"bayesian": "head", "plain_weights": "personal"}
    with pytest.raises(Killed):
        federate("killed", interfere=interfere, **words)
    resumed, calm = federate("killed", resume=True, **words), federate("calm", shuffle=1, **words)
    assert resumed.metrics == calm.metrics
    data = load(Settings.parse(defaults() | {"size": "20+20"}), 0, 4)
    x = ((data.x_train + 1) * 8).to(torch.uint8)
    *_, last = adapt(Finished.open(calm.folder, {"rounds": 2}), x, data.y_train, "new")
    assert last.personal().state_dict().keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}


def test_own_plain_weights_of_a_network_without_any_are_refused() -> None:
    with pytest.raises(
        SettingsError, match="plain-weights=personal is for weights without a distribution, and with"
    ):
        PFedBayes.check(Settings.parse(defaults() | {"plain-weights": "personal"}))


def test_it_adapts(federate: Federate) -> None:
    run = federate(bayesian="head", **LEARNS)
    data = load(Settings.parse(defaults() | {"size": "20+20"}), 0, 4)
    x = ((data.x_train + 1) * 8).to(torch.uint8)
    *_, last = adapt(Finished.open(run.folder, {"rounds": 2}), x, data.y_train, "new")
    start = last.start()
    assert start is not None and start.state_dict().keys() == last.personal().state_dict().keys()
    body = last.personal().state_dict()["1.weight"].reshape(-1)
    torch.testing.assert_close(body, run.tensors["body"][0, :6400])


@pytest.mark.parametrize("method", ["pfedbayes", "cfedbayes"])
def test_killed_and_resumed_to_the_bit(federate: Federate, method: str) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 3 and number == 2:
            raise Killed
        return reply

    words = {"method": method, "bayesian": "3", "clusters": 2, "beta": 1.5}
    with pytest.raises(Killed):
        federate("killed", interfere=interfere, **words)
    state = federate.latest.folder.parent / "state" / "killed" / "0"  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="no personal model yet"):
        PersonalModel.load(state)
    resumed, calm = federate("killed", resume=True, **words), federate("calm", shuffle=1, **words)
    assert resumed.metrics == calm.metrics
    assert all(torch.equal(resumed.tensors[name], tensor) for name, tensor in calm.tensors.items())


def test_plain_weights_are_checked_as_all_uploads_are(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number in (1, 2) and "body" in reply.content:
            row = reply.content["body"]["theta"].numpy().copy()  # type: ignore
            row[5] = float("nan") if number == 1 else 0.0
            reply.content["body"] = ArrayRecord({"theta": Array(row * (1 if number == 1 else 100))})
        return reply

    run = federate(bayesian="head", interfere=interfere, rounds=1)
    assert run.said("warning") == [
        "Site 1 dropped from this round: values that are not finite.",
        "Site 2 dropped from this round: an absurd update: it moved its plain weights by "
        + run.said("warning")[1].split("weights by ")[1],
    ]


def test_batch_norm_and_robust_sums(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    for rule in ("moments", "median"):
        run = federate(rule, model="networks_of_users:normed", bayesian="head", aggregation=rule, rounds=2)
        assert run.rows[-1]["clients_ok"] == "4" and "w.statistics" in run.tensors
        assert "body.statistics" not in run.tensors


def test_what_cannot_be_meant_is_told_in_a_sentence(federate: Federate) -> None:
    with pytest.raises(
        StrategyError, match='bayesian: "conv" is the beginning of no parameter; all, head, or the'
    ):
        federate(bayesian="conv")
    krum = Settings.parse(defaults() | {"bayesian": "head", "aggregation": "krum"})
    with pytest.raises(SettingsError, match="aggregation=krum trusts whole uploads, and with bayesian=head"):
        PFedBayes.check(krum)
    with pytest.raises(ValueError, match="it must know the parts"):
        PFedBayes(bayesian="head").initial_arrays(torch.zeros(10))
