"""Settings and objects as Python gives them, before anything starts."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedbayes
from fedbayes.door.given import dataset_setting, model_setting
from fedbayes.door.run import as_words
from fedbayes.errors import CommandError
from fedbayes.launch import engines
from fedbayes.protocol.models import build
from fedbayes.protocol.objects import given

X, Y = np.arange(12.0).reshape(6, 2), np.array([0, 1, 2, 0, 1, 2])


def test_keywords_are_settings() -> None:
    words = as_words(
        {"local_steps": np.int64(3), "pfedme": {"penalty": 15, "local_steps": 2}, "fedprox.mu": 0.5, "size": None,
         "classes": ["ash", "elm"], "data_dir": Path("d"), "train_all": True}
    )  # fmt: skip
    assert words == {
        "local-steps": 3, "pfedme.penalty": 15, "pfedme.local-steps": 2, "fedprox.mu": 0.5, "classes": "ash,elm",
        "data-dir": "d", "train-all": True,
    }  # fmt: skip
    assert isinstance(words["local-steps"], int) and isinstance(words["data-dir"], str)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"zetta": 1}, 'There is no setting "zetta"; did you mean "zeta"?'),
        ({"out_dir": 5}, 'The setting "out-dir" takes a folder, not "5"'),
        ({"zeta": -1}, 'The setting "zeta" takes auto or a number of at least 0, not "-1".'),
        ({"method": "fedavg", "zeta": 3.0}, 'method=fedavg does not use the setting "zeta"; '),
        ({"clients_per_round": 9, "clients": 3}, "clients-per-round=9, but there are only 3 clients"),
        ({"dataset": "nothing"}, 'There is no data set "nothing"; dataset takes '),
        ({"dataset": "nothing.npz"}, "There is no file "),
        ({"model": "nobody:net"}, 'nobody:net cannot be imported: there is no module "nobody"'),
        ({"engine": "slurm"}, 'The engine is embedded, flower or ray, not "slurm".'),
        ({"resume": "nobody"}, 'There is no run "nobody" in '),
        ({"dataset": 3}, "dataset takes a list with one (x_train, y_train, x_test, y_test) or (x, y) for each"),
        ({"dataset": (X, Y, X, Y)}, "these are four arrays that no list holds."),
        ({"dataset": [(X, Y), (X, Y, X)]}, "dataset[1] is tuple."),
        ({"dataset": [(X, Y)] * 2, "clients": 3}, "dataset has the data of 2 clients, not of clients=3."),
        ({"dataset": [(X, Y), (X[:, :1], Y)]}, "have examples of different shapes: 2 features and 1 features."),
        ({"dataset": [(X, Y), (X, Y[:3])]}, "at site 1 has 6 examples in x but 3 in y."),
        ({"dataset": [(X, Y)] * 2, "engine": "flower"}, "that are Python objects take the embedded engine."),
        ({"model": nn.Linear(2, 3)}, "model takes a function that makes a network, such as lambda"),
        ({"model": 3}, "model takes a name or a function that makes a network, not int."),
        ({"model": lambda: 3}, "model=object:model returned int; it takes a torch.nn.Module."),
        ({"dataset": [(X, Y)], "model": lambda: nn.Linear(5, 3)}, "model=object:model failed on two examples"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_exception_with_the_command_s_sentence(
    here: Path, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(fedbayes.Error) as raised:
        fedbayes.run(**arguments)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)
    assert list(here.iterdir()) == []


def test_data_are_known_by_their_contents() -> None:
    name, clients = dataset_setting([(X, Y), (X, Y)])
    assert name.startswith("object:data_") and clients == 2
    assert given(name)(1)["x"] is X, "nothing is copied"
    assert dataset_setting([(torch.tensor(X), torch.tensor(Y))] * 2) == (name, 2), "numpy or torch"
    assert dataset_setting([{"x": X, "y": Y}] * 2) == (name, 2)
    assert dataset_setting([(X, Y), (X + 1, Y)])[0] != name
    pool, clients = dataset_setting((X, Y.astype(str)))
    assert pool.startswith("object:pool_") and clients is None
    assert dataset_setting({"x": X, "y": Y.astype(str)}) == (pool, None)
    assert dataset_setting("digits") == ("digits", None) and dataset_setting(Path("a.npz")) == ("a.npz", None)


def test_networks_from_closures_classes_and_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    width = 7

    class Net(nn.Sequential):
        def __init__(self, classes: int) -> None:
            super().__init__(nn.Linear(2, width), nn.Linear(width, classes))

    assert model_setting("dnn") == "dnn"
    assert model_setting(Net) == "object:Net"
    assert build("object:Net", (2,), 3)[0].out_features == 7  # type: ignore[index]
    assert model_setting(lambda inputs: nn.Linear(inputs[0], 3)) == "object:model"
    assert build("object:model", (2,), 3).in_features == 2
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\ndef net(inputs, classes):\n    return nn.Linear(inputs[0], classes)\n"
        "def short(classes):\n    return nn.Linear(2, classes)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import nets_of_mine  # type: ignore[import-not-found]

    assert model_setting(nets_of_mine.net) == "nets_of_mine:net", "which any process can import"
    assert model_setting(nets_of_mine.short) == "object:short", "which the command would call with more"
    del sys.modules["nets_of_mine"]


def test_where_a_process_cannot_be_copied_objects_are_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> str:
        with pytest.raises(CommandError) as raised:
            fedbayes.run(dataset=[(X, Y)] * 2)
        return str(raised.value)

    with monkeypatch.context() as patch:
        patch.setattr(engines, "gpus", lambda _: 1)
        assert "only a copy of this process has, and CUDA does not work in a copy" in refused()
    monkeypatch.setattr(engines, "FORKS", False)
    assert "this system does not copy processes safely; write it as package.module:function." in refused()
    assert list(here.iterdir()) == []
