"""The exchange that ends a run: a site keeps its personal model where its state alone is not the one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from harness import Outcome
from inprocess import InProcessGrid

from client_app.data import load
from client_app.site import forget
from client_app.store import read, read_model
from fedbayes.errors import ModelError
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.settings import Settings, defaults

Federate = Callable[..., Outcome]
MADE = "elsewhere.ensemble"  # its personal model is a mixture of its own network and the received one
OPTIONS = {"method": MADE, "eval_every": 1, "ensemble.momentum": 0.5}


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    forget()
    yield
    forget()


def stores(run: Outcome) -> list[Path]:
    return [run.folder.parent / "state" / run.folder.name / str(number) for number in range(4)]


KEPT = ["pfedbayes", "sfedbayes", "cfedbayes", "local", "fedavg", "pfedme", "ditto", "fedamp", "heurfedamp"]
MADE_HERE = ["finetune", "perfedavg", "apfl", "fedper", "fedrep"]


@pytest.mark.parametrize("method", MADE_HERE)
def test_what_is_kept_predicts_as_was_measured(federate: Federate, method: str) -> None:
    run = federate(method=method, rounds=2, model="mlp", size="10+10", batch_size=20)
    settings = Settings.parse(defaults() | {"model": "mlp", "size": "10+10"})
    rows = {row["site"]: row for row in run.clients if row["round"] == "2"}
    for number, folder in enumerate(stores(run)):
        names = {file.name for file in folder.iterdir()}
        assert names == {"personal.safetensors", "previous.safetensors", "model.safetensors"}
        data = load(settings, number, 4)
        found = PersonalModel.load(folder).predict(((data.x_test + 1) * 8).to(torch.uint8))
        accuracy = float((found.labels == data.y_test).double().mean())
        assert accuracy == pytest.approx(float(rows[str(number)]["pm_accuracy"]), abs=1e-5)
    (stores(run)[0] / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=f"no personal model yet: {method} makes it from what the server"):
        PersonalModel.load(stores(run)[0])


@pytest.mark.parametrize("method", KEPT)
def test_where_the_state_holds_the_model_nothing_more_is_written(federate: Federate, method: str) -> None:
    run = federate(method=method, rounds=2, model="mlp")
    for folder in stores(run):
        names = {file.name for file in folder.iterdir()}
        assert names == {"personal.safetensors", "previous.safetensors"}
        assert read_model(folder).name == "personal.safetensors"


def test_a_model_made_from_what_is_received_is_kept_with_the_last_round(federate: Federate) -> None:
    grid = InProcessGrid({}, 4)
    run = federate(grid=grid, rounds=3, **OPTIONS)
    closing = [
        (int(said["round"]), bool(said["closing"]))
        for said in (one.content["exchange"] for one in grid.sent if "exchange" in one.content)
    ]
    assert set(closing) == {(1, False), (2, False), (3, False), (4, True)}
    for number, folder in enumerate(stores(run)):
        assert read_model(folder).name == "model.safetensors"
        (tags, model), (state_tags, state) = (
            read(folder / "model.safetensors"),
            read(folder / "personal.safetensors"),
        )
        assert tags["round"] == state_tags["round"] == "3", "the models after three rounds"
        assert tags["card"] == state_tags["card"] and tags["uuid"] == state_tags["uuid"]
        assert torch.equal(model["mixture.own"], state["theta"])
        assert torch.equal(model["mixture.shared"], run.tensors[f"start{number % 2}"])
        assert float(model["mixture.mix"]) == 0.5


def test_a_run_that_goes_on_after_its_end_is_the_undisturbed_one(federate: Federate) -> None:
    whole = federate("whole", rounds=4, **OPTIONS)
    federate("grown", rounds=2, **OPTIONS)
    during: list[str] = []

    def look(number: int, message: Message, reply: Message) -> Message:
        exchange = message.content.get("exchange")
        if exchange and exchange["round"] == 4 and number == 0:
            during.append(read_model(folder).name)
        return reply

    folder = whole.folder.parent / "state" / "grown" / "0"
    assert read(folder / "model.safetensors")[0]["round"] == "2"
    grown = federate("grown", rounds=4, resume=True, interfere=look, **OPTIONS)
    assert during == ["personal.safetensors"], "a model of an earlier end is older than the state"

    def without_time(run: Outcome) -> list[dict[str, str]]:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows]

    assert without_time(grown) == without_time(whole) and grown.clients == whole.clients
    for name, tensor in whole.tensors.items():
        assert torch.equal(tensor, grown.tensors[name])
    for one, other in zip(stores(whole), stores(grown), strict=True):
        for file in ("model.safetensors", "personal.safetensors"):
            (tags, expected), (again, found) = read(one / file), read(other / file)
            assert again["round"] == tags["round"] == "4" and expected.keys() == found.keys()
            assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_model_has_its_temperature(federate: Federate) -> None:
    run = federate(rounds=2, validation_fraction=0.25, temperature_scaling=True, **OPTIONS)
    rows = {row["site"]: row for row in run.clients if row["round"] == "2"}
    for number, folder in enumerate(stores(run)):
        kept = float(read(folder / "model.safetensors")[1]["temperature"])
        assert kept == pytest.approx(float(rows[str(number)]["pm_temperature"]), abs=1e-4)
