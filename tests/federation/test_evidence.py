"""evaluations.jsonl: what the report is drawn from, what sites tell, and that nonsense is left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord
from harness import Outcome
from inprocess import InProcessGrid

from bayes_core.predict.metrics import summarise
from server_app.evaluations import read_evaluations

Federate = Callable[..., Outcome]
PARAMETERS = 64 * 100 + 100 + 100 * 10 + 10


def test_every_evaluated_round_has_a_line_that_gives_its_row(federate: Federate) -> None:
    run = federate()
    lines = read_evaluations(run.folder)
    assert [line["round"] for line in lines] == [0, 1, 2, 4]
    for line in lines:
        row = run.rows[line["round"]]
        for model in ("pm", "gm"):
            assert sum(line[model]["bin_n"]) == 80
            metrics = summarise(line[model])
            assert float(row[f"{model}_ece"]) == pytest.approx(metrics["ece"], abs=1e-6)
            assert float(row[f"{model}_accuracy"]) == pytest.approx(metrics["accuracy"], abs=1e-6)
        for site in line["sites"].values():
            assert sum(site["pm_entropy"]) == sum(site["gm_entropy"]) == 20
        assert sum(line["weights"]["sigma"]) == 4 * PARAMETERS
        for model in ("pm", "gm"):
            counts = line["answers"][model]
            assert sum(counts) == 80 and sum(counts[len(counts) // 2 :]) == sum(line[model]["bin_correct"])
            gaps = [site[f"{model}_excess"] for site in line["sites"].values()]
            gap = (sum(line[model]["bin_confidence"]) - sum(line[model]["bin_correct"])) / 80
            assert sum(gaps) / 4 == pytest.approx(gap, abs=1e-5)


def test_sigma_starts_in_one_bin_and_spreads(federate: Federate) -> None:
    first, *_, last = read_evaluations(federate().folder)
    assert sum(count > 0 for count in first["weights"]["sigma"]) == 1
    assert sum(count > 0 for count in last["weights"]["sigma"]) > 1


def test_sparse_models_tell_lambda_and_each_layers_ratio(federate: Federate) -> None:
    run = federate(method="sfedbayes", lambda_init=0.3, lr_lambda=0.05)
    first, *_, last = (line["weights"] for line in read_evaluations(run.folder))
    assert sum(first["lambda"]) == 4 * PARAMETERS and first["lambda"][12] == 4 * PARAMETERS  # 0.3 · 40
    assert first["nonzero"] == pytest.approx([0.3] * 4, abs=1e-6)
    sizes = [6400, 100, 1000, 10]
    mean = sum(size * ratio for size, ratio in zip(sizes, last["nonzero"], strict=True)) / PARAMETERS
    assert float(run.rows[-1]["pm_nonzero"]) == pytest.approx(mean, abs=1e-5)


def test_plain_methods_have_no_sigma(federate: Federate) -> None:
    last = read_evaluations(federate(method="fedavg").folder)[-1]
    assert last["weights"] == {} and "pm" not in last
    assert sum(last["sites"]["0"]["gm_entropy"]) == 20


def test_after_a_kill_and_for_more_rounds_every_line_is_there_once(federate: Federate) -> None:
    class Killed(BaseException):
        pass

    def kill(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 4 and number == 1:
            raise Killed
        return reply

    with pytest.raises(Killed):
        federate("killed", interfere=kill)
    with (federate.latest.folder / "evaluations.jsonl").open("a") as stream:  # type: ignore[attr-defined]
        stream.write('{"format":1,"round":3,"pm"')  # a line cut short
    resumed = read_evaluations(federate("killed", resume=True).folder)
    calm = federate("calm")
    assert resumed == read_evaluations(calm.folder)
    longer = read_evaluations(federate("calm", resume=True, rounds=6).folder)
    assert [line["round"] for line in longer] == [0, 1, 2, 4, 6]
    assert longer[:4] == resumed


@pytest.mark.parametrize(
    ("real", "config", "told"),
    [
        (False, {}, True),  # a simulation
        (False, {"share-labels": False}, False),
        (True, {}, False),
        (True, {"share-labels": "false"}, False),
        (True, {"share-labels": True}, True),
    ],
)
def test_labels_leave_a_real_site_only_where_it_says_so(
    federate: Federate, tmp_path: Path, real: bool, config: dict[str, Any], told: bool
) -> None:
    def owner(name: str) -> dict[str, Any]:
        return {"site-id": name, "state-dir": str(tmp_path / "states" / name)} if real else {}

    nodes = [{"partition-id": i, "num-partitions": 3, **owner(f"s{i}"), **config} for i in range(3)]
    grid = InProcessGrid({}, 3, node_configs=nodes)
    line = read_evaluations(federate(rounds=1, grid=grid).folder)[-1]
    counts = [site.get("labels") for site in line["sites"].values()]
    if told:  # half of the classes, four examples of each
        assert all(sorted(labels) == [0] * 5 + [4] * 5 for labels in counts)
    else:
        assert counts == [None, None, None]


def test_the_true_group_of_a_simulated_client_is_kept(federate: Federate) -> None:
    line = read_evaluations(federate(layout="rotated", rounds=1).folder)[-1]
    assert {site["group"] for site in line["sites"].values()} == {0, 1}


def test_absurd_counts_are_left_out_and_the_metrics_stay(federate: Federate) -> None:
    lies: list[dict[str, Any]] = [
        {"sigma": [1, 2, 3], "pm_entropy": [-20, 40] + [0] * 18},
        {"sigma": [float("nan")] * 2000, "pm_entropy": [1000] + [0] * 19},
        {"sigma": [PARAMETERS + 1] + [0] * 1999, "nonzero": [5.0, 5.0], "pm_answers": [-20, 40] + [0] * 78},
        {"lambda": [0.5] * 40, "gm_entropy": 7.0},
    ]

    def lie(number: int, message: Message, reply: Message) -> Message:
        if "counts" in reply.content and number < 4:
            reply.content["counts"] = MetricRecord(dict(reply.content["counts"]) | lies[number])
        elif "counts" in reply.content:
            del reply.content["counts"]
        return reply

    honest = federate("honest", rounds=1, clients=5)
    run = federate("lied", rounds=1, clients=5, interfere=lie)
    assert run.metrics == honest.metrics
    ours, theirs = read_evaluations(run.folder)[-1], read_evaluations(honest.folder)[-1]
    assert ours["pm"] == theirs["pm"]
    assert ours["weights"].keys() == {"sigma"} and sum(ours["weights"]["sigma"]) == PARAMETERS  # site 3 alone
    told = {
        site: sorted(key for key in counts if "excess" not in key) for site, counts in ours["sites"].items()
    }
    assert (sum(ours["answers"]["pm"]), sum(ours["answers"]["gm"])) == (60, 80), "of three sites, and of four"
    both = ["gm_entropy", "labels", "pm_entropy"]
    assert told == {
        "0": ["gm_entropy", "labels"], "1": ["gm_entropy", "labels"], "2": both,
        "3": ["labels", "pm_entropy"], "4": ["labels"],
    }  # fmt: skip


def test_absurd_labels_are_left_out(federate: Federate) -> None:
    def lie(number: int, message: Message, reply: Message) -> Message:
        if number == 1 and "hello" in reply.content:
            reply.content["hello"]["labels"] = [10**6, -5]
        return reply

    line = read_evaluations(federate(rounds=1, interfere=lie).folder)[-1]
    assert [("labels" in site) for site in line["sites"].values()] == [True, False, True, True]
