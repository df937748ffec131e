"""Figures on validation data: held out of the training data, measured as test data are, and told beside them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import Message, MetricRecord
from harness import SMALL, Outcome

from bayes_core.predict.metrics import summarise, tally
from client_app import site as sites
from fedbayes.model.find import find_model
from fedbayes.protocol.settings import Settings, defaults
from server_app.report import render
from server_app.report.files import read_run
from server_app.rows import wilson

Federate = Callable[..., Outcome]
COLUMNS = ["pm_val_nll", "gm_val_nll", "pm_val_accuracy", "gm_val_accuracy"]
HELD = {"validation_fraction": 0.25, "size": "8+4", "rounds": 2, "eval_every": 1}


def figures(run: Outcome) -> list[list[str]]:
    return [[row[column] for column in COLUMNS] for row in (*run.rows, *run.clients)]


def validation_of(number: int, clients: int = 4, **words: Any) -> tuple[sites.Site, Settings]:
    given = {key.replace("_", "-"): value for key, value in words.items()}
    settings = Settings.parse(defaults() | SMALL | given)
    return sites.find_site({"partition-id": number, "num-partitions": clients}, settings), settings


def test_without_validation_data_the_columns_are_empty(federate: Federate) -> None:
    assert all(cells == [""] * 4 for cells in figures(federate(rounds=1)))


def test_the_figures_are_those_of_the_held_out_examples(federate: Federate) -> None:
    """FedAvg's global model is deterministic: a reader computes the same."""
    run = federate(method="fedavg", **HELD)
    model = find_model(f"{run.folder.name}/global", run.folder.parent)
    found = []
    for number in range(4):
        site, _ = validation_of(number, **HELD)
        assert site.validation is not None
        x, y = site.validation
        assert (len(y), len(site.data.y_train)) == (10, 30), "a quarter of 5 classes with 8 examples each"
        together = torch.cat([x, site.data.x_train]).flatten(1)
        assert len(torch.unique(together, dim=0)) == 40, "no example is in both"
        said = model.predictor.predict(x, 1, torch.Generator()).probabilities
        found.append(tally(said, y))
        row = [one for one in run.clients if one["site"] == str(number)][-1]
        assert row["n_test"] == "20"
        assert float(row["gm_val_nll"]) == pytest.approx(summarise(found[-1])["nll"], abs=1e-5)
        assert float(row["gm_val_accuracy"]) == pytest.approx(summarise(found[-1])["accuracy"], abs=1e-6)
        assert row["pm_val_nll"] == row["pm_val_accuracy"] == "", "there is no personal model"
    pooled = {
        key: [sum(parts) for parts in zip(*(one[key] for one in found), strict=True)] for key in found[0]
    }
    assert float(run.rows[-1]["gm_val_nll"]) == pytest.approx(summarise(pooled)["nll"], abs=1e-5)
    assert float(run.rows[-1]["gm_val_accuracy"]) == pytest.approx(summarise(pooled)["accuracy"], abs=1e-6)
    low, high = wilson(float(run.rows[-1]["gm_val_accuracy"]), 40)
    page = render(read_run(run.folder)).replace("\u2060", "")
    assert f"{100 * low:.1f}–{100 * high:.1f}\u202f%" in page, "of 40 validation examples, with its interval"


def test_measuring_them_changes_nothing_else(federate: Federate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that scales temperatures they come from the same draws as the temperature."""
    words = HELD | {"temperature_scaling": True}
    told = federate("told", **words)
    assert all(all(row[column] for column in COLUMNS) for row in told.rows)

    def silent(number: int, message: Message, reply: Message) -> Message:
        for name in ("pm_val", "gm_val"):
            if name in reply.content:
                del reply.content[name]
        return reply

    kept = federate("silent", **words, interfere=silent)
    others = [column for column in told.rows[0] if column not in (*COLUMNS, "seconds")]
    assert [[row[name] for name in others] for row in told.rows] == [
        [row[name] for name in others] for row in kept.rows
    ]
    assert all(cells == [""] * 4 for cells in figures(kept))
    assert told.rows[-1]["pm_val_nll"] != told.rows[-1]["pm_scaled_nll"]


def test_of_a_regression_there_is_the_nll(federate: Federate) -> None:
    numbers = {"dataset": "diabetes", "layout": "iid", "size": "40+20", "model": "mlp"}
    run = federate(**HELD | numbers)
    for cells in figures(run):
        assert all(cells[:2]) and cells[2:] == ["", ""]


@pytest.mark.parametrize("n", [9.0, 0.0, 1000.0])
def test_a_site_cannot_claim_other_numbers_than_in_its_hello(federate: Federate, n: float) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 1 and "pm_val" in reply.content:
            said: Any = reply.content["pm_val"]
            reply.content["pm_val"] = MetricRecord({**said, "n": [n], "correct": [0.0]})
        return reply

    run = federate(**HELD, interfere=interfere)
    assert "Site 1 was not measured for row 0: a tally pm_val with impossible numbers." in run.said("warning")


def test_what_nobody_spoke_of_is_passed_over(federate: Federate) -> None:
    def interfere(number: int, message: Message, reply: Message) -> Message:
        if "pm" in reply.content:
            reply.content["pm_val"] = reply.content["pm"]
        return reply

    run = federate(rounds=1, interfere=interfere)
    assert not run.said("warning") and all(cells == [""] * 4 for cells in figures(run))


def test_hello_says_how_many(federate: Federate) -> None:
    said: list[dict[str, Any]] = []

    def listen(number: int, message: Message, reply: Message) -> Message:
        if "hello" in reply.content:
            said.append(dict(reply.content["hello"]))  # type: ignore[arg-type]
        return reply

    federate("held", **HELD, interfere=listen)
    assert {one["n_validation"] for one in said} == {10}
    said.clear()
    federate("all", rounds=1, interfere=listen)
    assert not any("n_validation" in one for one in said)
