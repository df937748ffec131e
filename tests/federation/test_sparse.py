"""sFedBayes in a whole federation: sparse distributions on the wire, in the columns and after a crash."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from harness import Outcome

Federate = Callable[..., Outcome]
PARAMETERS = 64 * 100 + 100 + 100 * 10 + 10
HEADER = 128  # of numpy's format, for each row


class Killed(BaseException):
    """Ends the process, as far as a test can: nobody catches it."""


def sparse(run: Outcome) -> list[tuple[str, str]]:
    return [(row["pm_nonzero"], row["gm_nonzero"]) for row in run.rows]


@pytest.mark.parametrize(
    ("optimizer", "aggregation"), [("adam", "mean"), ("adam", "moments"), ("sgd", "mean")]
)
def test_with_lambda_one_it_is_pfedbayes(federate: Federate, optimizer: str, aggregation: str) -> None:
    settings = {"optimizer": optimizer, "lr_lambda": 0.3, "aggregation": aggregation}
    dense = federate("dense", method="pfedbayes", **settings)
    always = federate("always", method="sfedbayes", lambda_init=1, **settings)
    own = {"pm_nonzero", "gm_nonzero", "seconds", "bytes_up", "bytes_down"}
    for ours, theirs in ((always.rows, dense.rows), (always.clients, dense.clients)):
        assert len(ours) == len(theirs) > 0
        for a, b in zip(ours, theirs, strict=True):
            assert {key: a[key] for key in a.keys() - own} == {key: b[key] for key in b.keys() - own}
    assert torch.equal(always.tensors["w"][:2], dense.tensors["w"])
    assert (always.tensors["w"][2] == 1).all()
    assert sparse(always) == [("1.0", "1.0")] * 3 + [("", ""), ("1.0", "1.0")]
    assert sparse(dense) == [("", "")] * 5


def test_the_share_of_weights_that_are_on_is_a_column(federate: Federate) -> None:
    run = federate(method="sfedbayes", lambda_init=0.3, lr_lambda=0.05)
    evaluated = [row for row in run.rows if row["pm_accuracy"]]
    assert [row["round"] for row in evaluated] == ["0", "1", "2", "4"]
    for row in evaluated:
        assert 0 < float(row["pm_nonzero"]) < 1 and 0 < float(row["gm_nonzero"]) < 1
    assert evaluated[0]["pm_nonzero"] == evaluated[0]["gm_nonzero"] == "0.3", "all start alike"
    assert evaluated[-1]["pm_nonzero"] != evaluated[-1]["gm_nonzero"] != "0.3"
    assert float(evaluated[-1]["gm_nonzero"]) == pytest.approx(run.tensors["w"][2].mean().item(), abs=2e-6)
    last = [float(row["pm_nonzero"]) for row in run.clients if row["round"] == "4"]
    assert float(evaluated[-1]["pm_nonzero"]) == pytest.approx(sum(last) / 4, abs=2e-6)


def test_three_rows_travel(federate: Federate) -> None:
    run = federate(method="sfedbayes", rounds=1, lr_lambda=0.001)
    assert run.rows[1]["bytes_up"] == run.rows[1]["bytes_down"] == str(4 * 3 * (4 * PARAMETERS + HEADER))
    w = run.tensors["w"]
    assert w.shape == (3, PARAMETERS) and w[2].min() > 0 and w[2].max() < 1
    # Adam's first steps in logit λ are of at most lr-lambda each: 3 of 0.001, and λ = ½ has slope ¼
    assert 0.0002 < (w[2] - 0.5).abs().max() <= 3 * 0.001 / 4 * 1.001


@pytest.mark.parametrize(("server_round", "client"), [(1, 2), (3, 3), (5, 1)])  # 5 closes the run
def test_killed_and_resumed_is_undisturbed(federate: Federate, server_round: int, client: int) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == server_round and number == client:
            raise Killed
        return reply

    settings = {"method": "sfedbayes", "lr_lambda": 0.05}
    with pytest.raises(Killed):
        federate("killed", interfere=interfere, **settings)
    resumed, calm = federate("killed", resume=True, **settings), federate("calm", **settings)
    assert resumed.metrics == calm.metrics and sparse(resumed) == sparse(calm)
    assert torch.equal(resumed.tensors["w"], calm.tensors["w"])


@pytest.mark.parametrize("wrong", [1.5, -0.1])
def test_a_client_with_an_impossible_lambda_is_dropped_named_and_counted(
    federate: Federate, wrong: float
) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 1 and "w" in reply.content:
            rows = {key: array.numpy().copy() for key, array in reply.content["w"].items()}  # type: ignore
            rows["lambda"][5] = wrong
            reply.content["w"] = ArrayRecord({key: Array(np.asarray(row)) for key, row in rows.items()})
        return reply

    run = federate(method="sfedbayes", interfere=interfere)
    assert run.state == "finished"
    assert [(row["clients_ok"], row["clients_failed"]) for row in run.rows[1:]] == [("3", "1")] * 4
    assert run.said("warning") == ["Site 1 dropped from this round: a λ outside 0 … 1."] * 4
    named = [row["status"] for row in run.clients if row["site"] == "1" and row["round"] != "0"]
    assert named == ["failed: a λ outside 0 … 1"] * 4
    assert run.tensors["w"][2].min() > 0 and run.tensors["w"][2].max() < 1


def test_extrapolation_leaves_lambda_a_probability(federate: Federate) -> None:
    settings = {"method": "sfedbayes", "lr_lambda": 2.0, "rounds": 2}
    one = federate("one", **settings).tensors["w"][2]
    beyond = federate("beyond", beta=1.5, **settings)
    w = beyond.tensors["w"]
    assert one.min() > 1e-5 and one.max() < 1 - 1e-5, "β = 1 stays within what the clients sent"
    assert w[2].min().item() == pytest.approx(1e-6, rel=1e-3)
    assert w[2].max().item() == pytest.approx(1 - 1e-6, abs=1e-7)
    assert w.isfinite().all() and beyond.state == "finished"
    assert 0 < float(beyond.rows[-1]["pm_nonzero"]) < 1 and 0 < float(beyond.rows[-1]["gm_nonzero"]) < 1


def test_reset_restarts_q_from_the_servers_distribution(federate: Federate) -> None:
    settings = {"method": "sfedbayes", "lr_lambda": 0.05, "eval_every": 1}
    kept, reset = federate("kept", **settings), federate("reset", personal_init="reset", **settings)
    assert (
        kept.rows[0]["pm_nll"] == reset.rows[0]["pm_nll"]
        and kept.rows[1]["pm_nll"] == reset.rows[1]["pm_nll"]
    )
    assert kept.rows[2]["pm_nll"] != reset.rows[2]["pm_nll"], "the first round has no past to forget"
    assert reset.state == "finished" and 0 < float(reset.rows[-1]["pm_nonzero"]) < 1
    assert float(reset.rows[-1]["pm_nll"]) < float(reset.rows[0]["pm_nll"])


@pytest.mark.parametrize("aggregation", ["mean", "moments"])
def test_a_lambda_that_float32_rounds_to_one_is_a_gate_all_the_same(
    federate: Federate, aggregation: str
) -> None:
    run = federate(clients=2, method="sfedbayes", lambda_init=0.99999999, aggregation=aggregation)
    assert {row["clients_failed"] for row in run.rows[1:]} == {"0"} and run.said("warning") == []
    assert 0.9 < run.tensors["w"][2].min() < run.tensors["w"][2].max() < 1
