"""FedPA, pFedVEM, pFedGP and BNFed: batch norm, users' networks, samples of clients, 16 bits, any order, the lost.

The matrix (test_matrix.py) has each of them on what it can learn, killed and resumed.
"""

from collections.abc import Callable

import pytest
import torch
from flwr.app import Message
from harness import Outcome
from inprocess import InProcessGrid

import strategies
from client_app import site

Federate = Callable[..., Outcome]
METHODS = ["bnfed", "fedpa", "pfedgp", "pfedvem"]
SHORT = {"rounds": 3, "eval_every": 1, "size": "6+6", "clients": 3}


@pytest.fixture(autouse=True)
def forget() -> None:
    site.forget()


@pytest.mark.parametrize("buffers", ["shared", "local"])
@pytest.mark.parametrize("method", ["fedpa", "pfedgp", "pfedvem"])
def test_batch_norm(federate: Federate, method: str, buffers: str) -> None:
    seen: set[str] = set()

    def look(number: int, message: Message, reply: Message) -> Message:
        seen.update(message.content.array_records, reply.content.array_records)
        return reply

    words = {**SHORT, "model": "device_networks:normed", "method": method, "buffers": buffers}
    run = federate("whole", interfere=look, **words)
    assert not run.said("warning") and {row["clients_failed"] for row in run.rows[1:]} == {"0"}
    shared = buffers == "shared" and strategies.load(method).traits.global_model
    assert seen == ({"w", "w.statistics"} if shared else {"w"})
    site.forget()
    federate("torn", **words | {"rounds": 2})
    site.forget()
    assert federate("torn", resume=True, **words).metrics == run.metrics


@pytest.mark.parametrize("network", ["transformer", "tied", "recurrent"])
@pytest.mark.parametrize("method", ["fedpa", "pfedgp", "pfedvem"])
def test_networks_of_users(federate: Federate, method: str, network: str) -> None:
    run = federate(method=method, model=f"networks_of_users:{network}", **SHORT | {"rounds": 2})
    assert run.state == "finished" and not run.said("warning")


@pytest.mark.parametrize("network", ["networks_of_users:transformer", "device_networks:normed"])
def test_bnfed_names_the_layer_that_it_cannot_match(federate: Federate, network: str) -> None:
    with pytest.raises(
        strategies.StrategyError, match=r"site 0: method=bnfed matches neurons .* is not fully connected"
    ):
        federate(method="bnfed", model=network, **SHORT)


@pytest.mark.parametrize("method", ["fedpa", "pfedgp", "pfedvem"])
def test_some_clients_in_each_round(federate: Federate, method: str) -> None:
    run = federate(method=method, clients_per_round=1, **SHORT | {"clients": 4, "rounds": 5})
    assert not run.said("warning") and {row["clients_ok"] for row in run.rows[1:]} == {"1"}
    model = "pm" if strategies.load(method).traits.personal_model else "gm"
    assert all(row[f"{model}_accuracy"] for row in run.clients)


@pytest.mark.parametrize("method", METHODS)
def test_sixteen_bits_and_any_order_of_answers(federate: Federate, method: str) -> None:
    words = {**SHORT, "method": method, "wire": "bfloat16"}
    one, other = (federate(f"shuffled-{seed}", shuffle=seed, **words) for seed in (1, 2))
    assert one.metrics == other.metrics and not one.said("warning")
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    exact = federate("exact", **words | {"wire": "float32"})
    assert int(one.rows[2]["bytes_up"]) < 0.6 * int(exact.rows[2]["bytes_up"])


def test_bnfed_waits_for_everybody_and_then_goes_on_with_the_others(federate: Federate) -> None:
    def silent(number: int, message: Message, reply: Message) -> Message | None:
        return None if number == 2 and "exchange" in message.content else reply

    run = federate(method="bnfed", interfere=silent, **SHORT)
    assert run.state == "finished" and [row["clients_ok"] for row in run.rows[1:]] == ["2", "2", "2"]
    assert "needs every site, and goes on without site 2 after 3 attempts" in " ".join(run.said("warning"))


def test_a_site_that_comes_later_is_matched_too(federate: Federate) -> None:
    """It starts, as all have done, from weights of its own."""
    grid = InProcessGrid({}, 4)
    grid.offline.add(3)
    federate("late", grid=grid, method="bnfed", **SHORT)
    grid.offline.clear()
    run = federate("late", grid=grid, method="bnfed", resume=True, **SHORT | {"rounds": 5})
    assert run.rows[-1]["clients_ok"] == "4" and run.state == "finished"


def test_fedpa_tells_what_covariances_change(federate: Federate) -> None:
    run = federate(method="fedpa", **SHORT, **{"fedpa.sampling-from": 2, "fedpa.shrinkage": 1.0})
    told = [row["correction"] for row in run.rows]
    assert told[:2] == ["", ""] and all(float(one) > 0 for one in told[2:])
