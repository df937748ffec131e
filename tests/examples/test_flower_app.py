"""Strategies in a Flower app of one's own: the example, and what Flower's own hooks promise."""

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from flwr.serverapp.strategy import Result, Strategy
from inprocess import Clock, InProcessGrid

from bayes_core.flat import flatten
from strategies.cfedbayes import CFedBayes
from strategies.fedavg import FedAvg
from strategies.local import Local
from strategies.pfedbayes import PFedBayes
from strategies.rounds.method import ServerMethod
from strategies.sfedbayes import SFedBayes

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"
HOOKS = ("start", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")


class FlowerGrid(InProcessGrid):
    """With the exchange that Flower's own loop uses, and another ClientApp."""

    def __init__(self, app: ClientApp, clients: int) -> None:
        super().__init__({"rounds": 3}, clients)
        self.app = app

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


# ---------------------------------------------------------------------- the example


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    torch.set_num_threads(1)
    import own_client
    import own_server

    yield own_server, own_client
    for module in (own_server, own_client):
        del sys.modules[module.__name__]


def test_the_example_trains(own: tuple[ModuleType, ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    server, client = own
    grid = FlowerGrid(client.app, 3)
    server.app(grid, Context(1, 1, {}, RecordDict(), {"rounds": 3}))
    said = re.findall(
        r"^round (\d): gm_accuracy ([\d.]+), pm_accuracy ([\d.]+)$", capsys.readouterr().out, re.M
    )
    assert [one[0] for one in said] == ["1", "2", "3"]
    gm, pm = ([float(one[place]) for one in said] for place in (1, 2))
    assert gm == sorted(gm) and gm[0] < gm[-1] and pm[0] < pm[-1]
    assert pm[-1] > 0.8 and gm[-1] > 0.5


def test_flowers_own_result_comes_back(own: tuple[ModuleType, ModuleType]) -> None:
    _, client = own
    grid, strategy = FlowerGrid(client.app, 2), PFedBayes()
    start = strategy.initial_arrays(flatten(client.make_network()))
    result = strategy.start(grid, start, num_rounds=2)
    assert type(result) is Result and type(result.arrays) is ArrayRecord
    assert list(result.arrays) == list(start) == ["mu", "rho"]
    weights = 64 * 32 + 32 + 32 * 10 + 10
    assert {array.numpy().shape for array in result.arrays.values()} == {(weights,)}
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [1, 2]
    assert result.train_metrics_clientapp[2]["loss"] < result.train_metrics_clientapp[1]["loss"]
    assert [message.metadata.message_type for message in grid.sent] == [
        "train",
        "train",
        "evaluate",
        "evaluate",
    ] * 2
    assert all(sorted(message.content) == ["arrays", "config"] for message in grid.sent)


def test_it_is_short_and_knows_only_the_library() -> None:
    files = [EXAMPLE / "own_server.py", EXAMPLE / "own_client.py"]
    assert sum(len(file.read_text("utf-8").splitlines()) for file in files) <= 110
    for file in files:
        assert not re.search(
            r"^(from|import) (client_app|server_app|fedbayes)", file.read_text("utf-8"), re.M
        )


@pytest.mark.parametrize("kind", [PFedBayes, SFedBayes, CFedBayes, FedAvg, Local])
@pytest.mark.parametrize("hook", HOOKS)
def test_signatures_are_flowers_own(kind: type[ServerMethod], hook: str) -> None:
    ours, theirs = (inspect.signature(getattr(one, hook)).parameters for one in (kind, Strategy))
    assert [(one.name, one.default, one.kind) for one in ours.values()] == [
        (one.name, one.default, one.kind) for one in theirs.values()
    ]
    assert isinstance(kind(), Strategy)


# ---------------------------------------------------------------------- clusters


def test_clusters_are_found_before_round_1() -> None:
    """Four clients of three weights: two want +1 and +1.5, two −1 and −1.5, and in round t all of them t more."""
    app, heard = ClientApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays, number = message.content["arrays"], int(message.content["config"]["server-round"])
        heard.append((number, sorted(arrays)))
        want = [1.0, 1.5, -1.0, -1.5][int(context.node_config["partition-id"])]
        rows = {"mu": Array(np.full(3, want + number, np.float32)), "rho": Array(np.full(3, -2, np.float32))}
        said: dict[str, Any] = {"num-examples": 1}
        if "mu" not in arrays:
            said["cluster"] = int(arrays["u0.mu"].numpy()[0] * want < 0)
        return Message(
            RecordDict({"arrays": ArrayRecord(rows), "metrics": MetricRecord(said)}), reply_to=message
        )

    strategy = CFedBayes(
        clusters=2, family="gaussian", beta=1.0, rho_init=-2.0, fraction_train=0.5, fraction_evaluate=0
    )
    result = strategy.start(FlowerGrid(app, 4), strategy.initial_arrays(torch.zeros(3)), num_rounds=2)
    priors = ["u0.mu", "u0.rho", "u1.mu", "u1.rho"]
    assert heard == [(0, ["mu", "rho"])] * 4 + [(1, priors)] * 2 + [(2, priors)] * 2, "all, then half of them"
    assert sorted(result.arrays) == priors
    assert list(result.train_metrics_clientapp) == [1, 2] and not result.evaluate_metrics_clientapp

    everybody = CFedBayes(clusters=2, family="gaussian", beta=1.0, rho_init=-2.0, fraction_evaluate=0)
    result = everybody.start(FlowerGrid(app, 4), everybody.initial_arrays(torch.zeros(3)), num_rounds=2)
    assert result.arrays["u0.mu"].numpy().tolist() == [1.25 + 2] * 3
    assert result.arrays["u1.mu"].numpy().tolist() == [-1.25 + 2] * 3


def test_clusters_need_an_answer_before_round_1() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if message.content["config"]["server-round"] == 0:
            raise RuntimeError("not yet")
        return reply(message, {"mu": ONE, "rho": [-2.0] * 3})

    strategy = CFedBayes(clusters=2)
    with pytest.raises(RuntimeError, match="No usable reply to the exchange before round 1 that CFedBayes"):
        strategy.start(FlowerGrid(app, 2), strategy.initial_arrays(torch.zeros(3)))


# ---------------------------------------------------------------------- replies by hand

NO_APP = ClientApp()


def asked(strategy: ServerMethod, arrays: ArrayRecord, clients: int = 2, number: int = 1) -> list[Message]:
    messages = strategy.configure_train(number, arrays, ConfigRecord(), FlowerGrid(NO_APP, clients))
    for place, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = str(place)
    return messages


def reply(message: Message, rows: dict[str, Any], **metrics: Any) -> Message:
    arrays = ArrayRecord({name: Array(np.array(row, np.float32)) for name, row in rows.items()})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, **metrics})})
    return Message(content, reply_to=message)


ONE, OTHER = [1.0, 2.0, 3.0], [3.0, 4.5, 7.0]


@pytest.mark.parametrize(("examples", "weighting"), [((5, 5), "uniform"), ((1, 3), "examples")])
def test_fedavg_is_flowers_own(examples: tuple[int, int], weighting: str) -> None:
    ours, theirs = FedAvg(beta=1.0, weighting=weighting), FlowersFedAvg()
    messages = asked(ours, ours.initial_arrays(torch.zeros(3)))
    found = []
    for strategy in (ours, theirs):
        replies = [
            reply(message, {"theta": row}, **{"num-examples": n, "loss": float(n)})
            for message, row, n in zip(messages, (ONE, OTHER), examples, strict=True)
        ]
        arrays, metrics = strategy.aggregate_train(1, replies)
        assert arrays is not None and metrics is not None
        found.append((arrays["theta"].numpy().tolist(), metrics["loss"]))
    assert found[0] == found[1]
    assert found[0][0] == ([2.0, 3.25, 5.0] if weighting == "uniform" else [2.5, 3.875, 6.0])


def test_examples_count_only_where_that_is_asked_for() -> None:
    strategy = FedAvg(beta=1.0)
    messages = asked(strategy, strategy.initial_arrays(torch.zeros(3)))
    replies = [
        reply(message, {"theta": row}, **{"num-examples": n})
        for message, row, n in zip(messages, (ONE, OTHER), (1, 3), strict=True)
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays and arrays["theta"].numpy().tolist() == [2.0, 3.25, 5.0]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"mu": [1.0, 2.0, 3.0, 4.0], "rho": [0.0, 0.0, 0.0, 0.0]},
        {"mu": [1.0, float("nan"), 3.0], "rho": [0.0, 0.0, 0.0]},
        {"mu": [1.0, 2.0, 3.0], "rho": [0.0, float("inf"), 0.0]},
        {"mu": [1.0, 2.0, 3.0]},
        {"mu": [1.0, 2.0, 3.0], "rho": [0.0]},
        {"v.mu": [1.0, 2.0, 3.0], "v.rho": [0.0, 0.0, 0.0]},
        {},
    ],
    ids=["shape", "nan", "infinite", "no rho", "short rho", "another name", "nothing"],
)
def test_what_cannot_be_used_is_dropped_and_the_rest_is_used(spoilt: dict[str, list[float]]) -> None:
    strategy = PFedBayes(beta=1.0)
    messages = asked(strategy, strategy.initial_arrays(torch.zeros(3)), clients=4)
    good = [
        reply(message, {"mu": row, "rho": [-2.0] * 3}, loss=loss)
        for message, row, loss in zip(messages[:2], (ONE, OTHER), (1.0, 2.0), strict=True)
    ]
    failed = Message(Error(1, "the disk is full"), reply_to=messages[2])
    bad = reply(messages[3], spoilt, loss=1000.0)
    arrays, metrics = strategy.aggregate_train(1, [good[0], failed, bad, good[1]])
    assert arrays is not None and arrays["mu"].numpy().tolist() == [2.0, 3.25, 5.0]
    assert arrays["rho"].numpy().tolist() == [-2.0] * 3
    assert metrics is not None and metrics["loss"] == 1.5
    assert strategy.aggregate_train(2, [failed, reply(messages[3], spoilt)]) == (None, None)


@pytest.mark.parametrize("examples", [-3, 0, float("nan"), [1]])
def test_an_impossible_number_of_examples_is_dropped(examples: object) -> None:
    strategy = FedAvg(beta=1.0, weighting="examples")
    messages = asked(strategy, strategy.initial_arrays(torch.zeros(3)))
    replies = [
        reply(messages[0], {"theta": ONE}),
        reply(messages[1], {"theta": OTHER}, **{"num-examples": examples}),
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays and arrays["theta"].numpy().tolist() == ONE


def test_evaluation_is_weighted_by_examples_and_errors_are_left_out() -> None:
    strategy = PFedBayes()
    strategy.initial_arrays(torch.zeros(3))
    messages = strategy.configure_evaluate(
        1, strategy.initial_arrays(torch.zeros(3)), ConfigRecord({"deep": True}), FlowerGrid(NO_APP, 3)
    )
    assert {message.metadata.message_type for message in messages} == {"evaluate"}
    assert dict(messages[0].content["config"]) == {"deep": True, "server-round": 1}
    replies = [
        reply(messages[0], {}, **{"num-examples": 1, "accuracy": 0.5, "only here": 1.0}),
        reply(messages[1], {}, **{"num-examples": 3, "accuracy": 0.9}),
        Message(Error(1, "gone"), reply_to=messages[2]),
    ]
    found = strategy.aggregate_evaluate(1, replies)
    assert found is not None and list(found) == ["accuracy"] and found["accuracy"] == pytest.approx(0.8)
    assert strategy.aggregate_evaluate(1, replies[2:]) is None


# ---------------------------------------------------------------------- nodes


def test_a_share_of_the_nodes_is_drawn_anew_in_every_round() -> None:
    strategy = PFedBayes(fraction_train=0.5, seed=3)
    start = strategy.initial_arrays(torch.zeros(3))
    drawn = [
        [message.metadata.dst_node_id for message in asked(strategy, start, clients=8, number=number)]
        for number in (1, 2, 3, 1)
    ]
    assert all(len(set(one)) == 4 for one in drawn)
    assert drawn[0] == drawn[3] and len({tuple(one) for one in drawn[:3]}) > 1


def test_too_few_nodes_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.rounds.flower.time", Clock())
    strategy = PFedBayes(min_available_nodes=5, wait=0.1)
    with pytest.raises(TimeoutError, match=r"^Only 4 of 5 nodes connected within 0\.1 s\.$"):
        strategy.start(FlowerGrid(NO_APP, 4), strategy.initial_arrays(torch.zeros(3)))
