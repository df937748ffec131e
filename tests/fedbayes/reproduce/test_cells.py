"""The cells: as many as the paper has, with the settings of one recipe, and found by any of their parts."""

from pathlib import Path

import pytest

from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import methods
from fedbayes.reproduce import paper
from fedbayes.reproduce.cells import SIZES, WHATS, cells, chosen
from fedbayes.reproduce.recipes import RECIPES
from fedbayes.reproduce.work import Job


def names(what: str, only: str) -> list[str]:
    return [cell.name for cell in chosen(what, only)]


@pytest.mark.parametrize(
    ("what", "count"), [("table1", 99), ("table2", 27), ("table3", 108), ("settings", 23)]
)
def test_every_figure_of_the_paper_has_a_cell(what: str, count: int) -> None:
    found = {cell.name for cell in cells(what)}
    assert found == {name for name in paper.figures(what) if not name.endswith(paper.EARLY)}
    assert len(found) == len(cells(what)) == count


def test_the_figures_of_a_row_are_the_papers() -> None:
    assert paper.figures("table1")["mnist/medium/pfedbayes"]["pm"] == 97.43
    assert paper.figures("table1")["mnist/medium/pfedbayes (400)"]["pm"] == 97.41
    assert paper.figures("table1")["svhn/small/heurfedamp"] == {
        "pm": 53.62,
        "pm_sd": 0.34,
    }  # it has no global model
    assert paper.figures("table2")["mnist/medium/sfedbayes/lambda-init=0.5"]["pm_nnr"] == 35.58
    assert paper.figures("table3")["mnist-fmnist/small/cfedbayes"]["gm"] == 84.81


def test_every_method_has_a_recipe_that_both_halves_take() -> None:
    assert sorted(RECIPES) == methods()
    for what in WHATS:
        for cell in cells(what, further=True):
            if (cell.size == "small" and cell.data in ("mnist", "cifar10", "mnist-rotated")) or cell.changes:
                assert Job.of(cell, 1, None).refused == "", cell.name


def test_a_recipe_is_the_same_for_all_cells_of_a_method_and_a_model() -> None:
    of_data = {"dataset", "layout", "groups", "size"}
    for method in RECIPES:
        for model in ("dnn", "vgg"):
            words = {
                tuple(sorted((key, value) for key, value in cell.words().items() if key not in of_data))
                for what in ("table1", "table3")
                for cell in cells(what, further=True)
                if (cell.method, cell.model) == (method, model)
            }
            assert len(words) == 1


def test_only_takes_parts_in_any_order() -> None:
    assert (
        names("table1", "mnist/small/pfedme")
        == names("table1", "pfedme/small/mnist")
        == ["mnist/small/pfedme"]
    )
    assert names("table1", "small/mnist/pfedme, fmnist/large/fedavg") == [
        "mnist/small/pfedme", "fmnist/large/fedavg",
    ]  # fmt: skip
    assert len(names("table1", "mnist/small")) == 9
    assert names("table3", "rotated/mnist/small/ifca") == ["mnist-rotated/small/ifca"]
    assert names("table2", "mnist/0.5/small") == ["mnist/small/sfedbayes/lambda-init=0.5"]
    assert names("settings", "zeta=20") == [
        "mnist/medium/pfedbayes/rho-init=-2.5/zeta=20/lr-personal=0.001/lr-global=0.001"
    ]


def test_methods_that_the_paper_does_not_have_come_when_they_are_named() -> None:
    assert names("table1", "ditto/mnist") == [f"mnist/{size}/ditto" for size in SIZES]
    assert {cell.method for cell in chosen("table3", "", further=True)} == set(RECIPES)
    assert "ditto" not in {cell.method for cell in cells("table3")}


def test_an_unknown_part_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        CommandError, match=r'table2 has no "svhn"; --only takes mnist, fmnist, cifar10; small, .*0\.3'
    ):
        chosen("table2", "svhn/small")
    with pytest.raises(CommandError, match=r'table1 has no cell that is all of "mnist/fmnist"'):
        chosen("table1", "mnist/fmnist")
    with pytest.raises(CommandError, match=r'There is no "table4" to reproduce; there are table1, table2'):
        chosen("table4", "")


def test_clusters_are_those_of_the_paper() -> None:
    words = {cell.data: cell.words() for cell in cells("table3") if cell.method == "ifca"}
    assert {data: one["layout"] for data, one in words.items()} == {
        "mnist-rotated": "rotated", "fmnist-rotated": "rotated", "cifar10-rotated": "rotated",
        "mnist-fmnist": "mixed",
    }  # fmt: skip


def test_a_file_beside_the_official_ones_serves(tmp_path: Path) -> None:
    (cell,) = chosen("table1", "cifar10/small/fedavg")
    assert cell.found_in(tmp_path) == {}
    (tmp_path / "cifar10.npz").touch()
    assert cell.found_in(tmp_path) == {"dataset": str(tmp_path / "cifar10.npz"), "size": "25+475"}
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert cell.found_in(tmp_path) == {}


def test_sparse_models_are_asked_to_keep_the_same_share_of_the_gates_that_were_open() -> None:
    asked = {
        (cell.changes, cell.words()["lambda-init"]): cell.words().get("sparsity-target")
        for cell in chosen("table2", "mnist/medium")
    }
    assert sorted((words, target) for (_, words), target in asked.items()) == [
        ("0.3", "0.21"),
        ("0.5", "0.35"),
        ("0.7", "0.49"),
    ]
    assert all("sparsity-target" not in cell.words() for cell in chosen("table2", "cifar10"))
