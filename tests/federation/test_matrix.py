"""Every method there is, at real sites, on classes and on numbers: run, measured, kept, and resumed to the digit."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from harness import Outcome
from inprocess import InProcessGrid, sites

import strategies
from client_app.card import Card
from client_app.store import read
from fedbayes.errors import ModelError
from fedbayes.launch.app_bundle import methods
from fedbayes.model.export import export
from fedbayes.model.find import find_model
from fedbayes.model.personal import PersonalModel
from fedbayes.protocol.columns import MODELS
from fedbayes.protocol.settings import SettingsError
from strategies.rounds.state import Traits

Federate = Callable[..., Outcome]
SITES = [f"site-{i}" for i in range(3)]
DATA: dict[str, dict[str, Any]] = {
    "classes": {"dataset": "digits", "size": "4+4"},
    "numbers": {"dataset": "diabetes", "layout": "iid", "size": "40+20"},
}
HEADLINE = {"classes": "accuracy", "numbers": "rmse"}


@dataclass(frozen=True)
class Cell:
    """One method on one kind of data: a run of three rounds, and one of two that was resumed to three."""

    method: str
    kind: str
    whole: Outcome
    resumed: Outcome
    disks: Path

    @property
    def traits(self) -> Traits:
        return strategies.load(self.method).traits

    @property
    def models(self) -> list[str]:
        has = {"pm": self.traits.personal_model, "gm": self.traits.global_model}
        return [name for name in MODELS if has[name]]


def with_logs(folder: Path) -> InProcessGrid:
    grid = sites(folder, count=len(SITES))
    for context in grid.contexts.values():
        context.node_config["log-file"] = f"{context.node_config['state-dir']}/site.log"
    return grid


ONLY_CLASSES = [method for method in methods() if not strategies.load(method).traits.numbers]
CELLS = [
    (method, kind) for method in methods() for kind in DATA if kind == "classes" or method not in ONLY_CLASSES
]


@pytest.mark.parametrize("method", ONLY_CLASSES)
def test_a_method_that_learns_classes_says_so(federate: Federate, method: str) -> None:
    with pytest.raises(SettingsError, match=f"method={method} learns classes, but the targets are numbers"):
        federate(method=method, model="mlp", **DATA["numbers"])


@pytest.fixture(scope="module", params=CELLS, ids="-".join)
def cell(
    request: pytest.FixtureRequest, federate_once: Federate, tmp_path_factory: pytest.TempPathFactory
) -> Cell:
    method, kind = request.param
    folder = tmp_path_factory.mktemp("disks")
    settings = {"method": method, "model": "mlp", "eval_every": 1, **DATA[kind]}
    whole = federate_once(
        f"{method}-{kind}", grid=with_logs(folder / "whole"), rounds=3, report=True, **settings
    )
    federate_once(f"{method}-{kind}-torn", grid=with_logs(folder / "torn"), rounds=2, **settings)
    again = with_logs(folder / "torn")  # the coordinator and all sites have been started anew
    resumed = federate_once(f"{method}-{kind}-torn", grid=again, rounds=3, resume=True, **settings)
    return Cell(method, kind, whole, resumed, folder / "whole")


def test_every_site_is_measured_in_every_round_and_none_fails(cell: Cell) -> None:
    run = cell.whole
    assert run.state == "finished" and not run.said("warning")
    assert [row["round"] for row in run.rows] == ["0", "1", "2", "3"]
    assert {(row["clients_ok"], row["clients_failed"]) for row in run.rows[1:]} == {("3", "0")}
    for row in run.rows:
        each = [one for one in run.clients if one["round"] == row["round"]]
        assert [one["site"] for one in each] == SITES
        for model in MODELS:
            figures = [one[f"{model}_{HEADLINE[cell.kind]}"] for one in (row, *each)]
            assert all(figures) if model in cell.models else not any(figures)


def test_the_federations_figure_is_that_of_its_sites(cell: Cell) -> None:
    """All have as many test examples: accuracies are averaged, and squares of errors."""
    power = {"classes": 1, "numbers": 2}[cell.kind]
    for row in cell.whole.rows:
        for name in (f"{model}_{HEADLINE[cell.kind]}" for model in cell.models):
            each = [float(one[name]) for one in cell.whole.clients if one["round"] == row["round"]]
            mean = (sum(one**power for one in each) / len(each)) ** (1 / power)
            assert float(row[name]) == pytest.approx(mean, rel=1e-5, abs=1e-6)


def test_the_sites_logs_name_the_same_figures(cell: Cell) -> None:
    for number, site in enumerate(SITES):
        lines = (cell.disks / f"disk-{number}" / "site.log").read_text().splitlines()
        measured = [line.split("  ") for line in lines if "after round " in line]
        rows = [one for one in cell.whole.clients if one["site"] == site]
        assert len(measured) == len(rows) == 4
        for parts, row in zip(measured, rows, strict=True):
            assert f"after round {row['round']}:" in parts
            for model in cell.models:
                words = {"classes": f"{model.upper()} ", "numbers": f"{model.upper()} RMSE "}[cell.kind]
                (told,) = (part.removeprefix(words) for part in parts if part.startswith(words))
                figure = float(row[f"{model}_{HEADLINE[cell.kind]}"])
                assert float(told) == pytest.approx(figure, abs=6e-5), "both are rounded"


def test_the_store_has_a_card_and_the_model_where_there_is_one(cell: Cell) -> None:
    for number, site in enumerate(SITES):
        folder = cell.disks / f"disk-{number}" / cell.whole.folder.name / site
        tags, _ = read(folder / "personal.safetensors")
        card = Card.read(tags["card"])
        assert (card.method, card.run, card.site) == (cell.method, cell.whole.folder.name, site)
        assert tags["round"] == "3" and len(card.classes) == {"classes": 10, "numbers": 0}[cell.kind]
        if cell.traits.personal_model:
            assert PersonalModel.load(folder).card == card
        else:
            with pytest.raises(ModelError, match=f"{cell.method} has only the global one"):
                PersonalModel.load(folder)


def test_the_global_model_is_exported_or_a_sentence_says_why_not(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedbayes.model.export.has_onnx", lambda: False
    )  # which is tested elsewhere, and slow
    folder = cell.whole.folder
    try:
        export(find_model(f"{folder.name}/global", folder.parent), tmp_path / "out")
    except ModelError as error:
        said = str(error)
        assert (said.endswith(".") and "\n" not in said and folder.name in said) or cell.method in said
        several = f"there is {folder.name}/global-" in said
        assert several or not cell.traits.global_model or "cannot be exported" in said, said
    else:
        assert cell.traits.global_model and (tmp_path / "out" / "network.safetensors").stat().st_size > 0


def test_a_resumed_run_is_the_undisturbed_one(cell: Cell) -> None:
    def without_time(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]

    assert without_time(cell.resumed.rows) == without_time(cell.whole.rows)
    assert cell.resumed.clients == cell.whole.clients
    assert set(cell.resumed.tensors) == set(cell.whole.tensors)
    for name, tensor in cell.whole.tensors.items():
        assert (cell.resumed.tensors[name] == tensor).all()
