"""Half the bytes in a whole federation: counted, learning all the same, and resumed to the bit."""

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


def test_bytes_of_every_method(federate: Federate) -> None:
    def of(method: str, wire: str, **settings: object) -> tuple[int, int]:
        row = federate(f"{method}-{wire}", method=method, wire=wire, rounds=1, **settings).rows[1]
        return int(row["bytes_down"]) // 4, int(row["bytes_up"]) // 4

    floats, halves = 4 * PARAMETERS + HEADER, 2 * PARAMETERS + HEADER
    assert of("fedavg", "float32") == (floats, floats)
    assert of("fedavg", "float16") == (halves, halves)
    assert of("pfedbayes", "bfloat16") == (2 * halves, 2 * halves)
    assert of("sfedbayes", "bfloat16") == (3 * halves, 3 * halves)
    assert of("local", "float32") == (floats, 0), "nobody reads its weights"
    assert 2 * halves < 1.01 * floats, "pFedBayes in bfloat16 against FedAvg in float32"


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
@pytest.mark.parametrize("method", ["pfedbayes", "sfedbayes", "cfedbayes", "fedavg"])
def test_it_learns_as_with_float32(federate: Federate, method: str, wire: str) -> None:
    settings = {"method": method, "rounds": 6, "local_steps": 10, "beta": 1.5, "clusters": 2}
    exact, rounded = federate("exact", **settings), federate("rounded", wire=wire, **settings)
    column = "gm_nll" if method == "fedavg" else "pm_nll"
    first, last = float(exact.rows[0][column]), float(exact.rows[-1][column])
    assert last < 0.99 * first
    assert float(rounded.rows[-1][column]) == pytest.approx(last, abs=0.02 * (first - last))
    for name, v in exact.tensors.items():
        assert not torch.equal(rounded.tensors[name], v)
        assert (rounded.tensors[name] - v).abs().mean() < 0.003  # σ is 0.08


def test_killed_and_resumed_in_bfloat16(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 3 and number == 2:
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate("killed", wire="bfloat16", interfere=interfere)
    resumed, calm = (
        federate("killed", wire="bfloat16", resume=True),
        federate("calm", wire="bfloat16", shuffle=1),
    )
    assert resumed.metrics == calm.metrics
    assert torch.equal(resumed.tensors["w"], calm.tensors["w"])


def test_a_sparse_model_sends_less(federate: Federate) -> None:
    """With a lower target all logits fall by 0.1 a round, until most weights are below 2 %."""
    settings = {
        "method": "sfedbayes",
        "lambda_init": 0.03,
        "sparsity_target": 0.01,
        "lr_lambda": 0.01,
        "rounds": 8,
        "eval_every": 8,
    }
    exact = federate("exact", **settings)
    sparse = federate("sparse", wire="bfloat16", **settings)
    sent = [int(row["bytes_up"]) // 4 for row in sparse.rows[1:]]
    assert sent[0] == 3 * (2 * PARAMETERS + HEADER), "dense while all weights are on"
    assert sent[-1] < 0.6 * sent[0]
    assert {int(row["bytes_down"]) // 4 for row in sparse.rows[1:]} == {sent[0]}
    assert float(sparse.rows[-1]["pm_nll"]) == pytest.approx(float(exact.rows[-1]["pm_nll"]), abs=0.02)
    assert float(sparse.rows[-1]["gm_nonzero"]) == pytest.approx(
        float(exact.rows[-1]["gm_nonzero"]), abs=0.002
    )


def test_overflow_and_another_format_are_dropped_and_named(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number in (1, 2) and "w" in reply.content:
            rows = {key: array.numpy().copy() for key, array in reply.content["w"].items()}  # type: ignore
            rows["mu"][5] = np.inf
            dtype = np.float32 if number == 2 else np.float16
            reply.content["w"] = ArrayRecord({key: Array(row.astype(dtype)) for key, row in rows.items()})
        return reply

    run = federate(wire="float16", interfere=interfere, rounds=1)
    assert run.said("warning") == [
        "Site 1 dropped from this round: values that are not finite.",
        "Site 2 dropped from this round: unreadable arrays (rows of another type than float16).",
    ]
    assert (run.rows[1]["clients_ok"], run.rows[1]["clients_failed"]) == ("2", "2")
