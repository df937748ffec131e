"""The personalised methods beside the paper's own: batch norm, users' networks, samples of clients, 16 bits, newcomers.

The matrix (test_matrix.py) has each of them on classes and numbers, killed and resumed.
"""

from collections.abc import Callable

import pytest
import torch
from flwr.app import Message
from harness import SMALL, Outcome
from inprocess import InProcessGrid

import strategies
from client_app import site
from client_app.data import load
from fedbayes.errors import ModelError
from fedbayes.model.adapt import adapt
from fedbayes.model.finished import Finished
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.settings import Settings, defaults

Federate = Callable[..., Outcome]
METHODS = ["apfl", "ditto", "fedamp", "fedper", "fedrep", "finetune", "heurfedamp", "perfedavg", "pfedme"]
SHORT = {"rounds": 3, "eval_every": 1, "size": "6+6", "clients": 3}


@pytest.fixture(autouse=True)
def forget() -> None:
    site.forget()


def accuracy(run: Outcome, number: int, clients: int = 3) -> float:
    """Of the model in a client's folder, on the client's test data."""
    data = load(Settings.parse(defaults() | SMALL | {"size": "6+6"}), number, clients)
    model = PersonalModel.load(run.folder.parent / "state" / run.folder.name / str(number), trust_code=True)
    found = model.predict(((data.x_test + 1) * 8).to(torch.uint8))
    return float((found.labels == data.y_test).double().mean())


@pytest.mark.parametrize("buffers", ["shared", "local"])
@pytest.mark.parametrize("method", METHODS)
def test_batch_norm(federate: Federate, method: str, buffers: str) -> None:
    """Statistics go with a global model, where they are shared, and personal ones are kept as they were measured."""
    seen: set[str] = set()

    def look(number: int, message: Message, reply: Message) -> Message:
        seen.update(message.content.array_records, reply.content.array_records)
        return reply

    words = {**SHORT, "model": "device_networks:normed", "method": method, "buffers": buffers}
    run = federate("whole", interfere=look, **words)
    assert not run.said("warning") and {row["clients_failed"] for row in run.rows[1:]} == {"0"}
    shared = buffers == "shared" and strategies.load(method).traits.global_model
    assert seen == {"w", "w.statistics"} if shared else seen == {"w"}
    rows = {row["site"]: float(row["pm_accuracy"]) for row in run.clients if row["round"] == "3"}
    for number in range(3):
        assert accuracy(run, number) == pytest.approx(rows[str(number)], abs=1e-5)
    site.forget()
    federate("torn", **words | {"rounds": 2})
    site.forget()
    assert federate("torn", resume=True, **words).metrics == run.metrics


@pytest.mark.parametrize("network", ["transformer", "tied", "dropped"])
@pytest.mark.parametrize("method", METHODS)
def test_networks_of_users(federate: Federate, method: str, network: str) -> None:
    module = "device_networks" if network == "dropped" else "networks_of_users"
    words = {**SHORT, "model": f"{module}:{network}", "method": method, "rounds": 2}
    run = federate("one", **words)
    assert run.state == "finished" and not run.said("warning")
    rows = {row["site"]: float(row["pm_accuracy"]) for row in run.clients if row["round"] == "2"}
    assert accuracy(run, 1) == pytest.approx(rows["1"], abs=1e-5)
    if network == "dropped":
        site.forget()
        assert federate("again", **words).metrics == run.metrics


@pytest.mark.parametrize("method", sorted({*METHODS} - {"fedamp"}))
def test_some_clients_in_each_round(federate: Federate, method: str) -> None:
    """All are measured, also those that have never trained, and late ones are given what they need."""
    words = {**SHORT, "method": method, "clients_per_round": 1, "clients": 4, "rounds": 5}
    run = federate("some", **words)
    assert not run.said("warning") and {row["clients_ok"] for row in run.rows[1:]} == {"1"}
    assert all(row["pm_accuracy"] for row in run.clients)
    every = federate("every", train_all=True, **words)
    assert float(every.rows[-1]["pm_accuracy"]) > float(run.rows[0]["pm_accuracy"]) and not every.said(
        "warning"
    )


@pytest.mark.parametrize("method", METHODS)
def test_sixteen_bits_and_any_order_of_answers(federate: Federate, method: str) -> None:
    words = {**SHORT, "method": method, "wire": "bfloat16"}
    one, other = (federate(f"shuffled-{seed}", shuffle=seed, **words) for seed in (1, 2))
    assert one.metrics == other.metrics and not one.said("warning")
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    exact = federate("exact", **words | {"wire": "float32"})
    assert int(one.rows[1]["bytes_up"]) < 0.6 * int(exact.rows[1]["bytes_up"])
    for name, tensor in exact.tensors.items():
        torch.testing.assert_close(one.tensors[name], tensor, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("method", METHODS)
def test_a_site_that_took_no_part(federate: Federate, method: str) -> None:
    words = {"size": "20+6", "rounds": 8, "local_steps": 10, "perfedavg.lr": 0.1}
    run = federate(method=method, layout="iid", **SHORT | words)
    finished = Finished.open(run.folder, {"rounds": 5})
    data = load(Settings.parse(defaults() | SMALL | {"size": "20+40", "layout": "iid"}), 1, 4)
    x, x_test = (((part + 1) * 8).to(torch.uint8) for part in (data.x_train, data.x_test))
    if method in ("fedamp", "heurfedamp"):
        with pytest.raises(ModelError, match="it has no global model"):
            next(adapt(finished, x, data.y_train, "new"))
        return
    *_, last = adapt(finished, x, data.y_train, "new")
    found = last.personal().predict(x_test)
    assert float((found.labels == data.y_test).double().mean()) > 0.5
    if method in ("fedper", "fedrep"):
        with pytest.raises(ModelError, match="it has no global model"):
            finished.global_model()


def test_a_client_that_is_lost_costs_fedamp_three_attempts_and_then_its_network(federate: Federate) -> None:
    """It needs everybody, and then goes on without; the heuristic keeps the latest network of the lost one."""
    grid = InProcessGrid({}, 3)
    before = federate("heuristic", grid=grid, method="heurfedamp", **SHORT).tensors["kept/w"]
    grid.offline.add(2)
    grown = federate("heuristic", grid=grid, method="heurfedamp", resume=True, **SHORT | {"rounds": 5})
    after = grown.tensors["kept/w"]
    assert torch.equal(before[2], after[2]) and not torch.equal(before[0], after[0])

    def silent(number: int, message: Message, reply: Message) -> Message | None:
        return None if number == 2 and "exchange" in message.content else reply

    strict = federate("strict", interfere=silent, method="fedamp", **SHORT)
    assert strict.state == "finished" and [row["clients_ok"] for row in strict.rows[1:]] == ["2", "2", "2"]
    assert "goes on without site 2 after 3 attempts" in " ".join(strict.said("warning"))
