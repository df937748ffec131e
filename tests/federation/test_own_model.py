"""A user's own network and .npz: in a federation, at the coordinator, and in a real simulation."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from harness import SMALL, Outcome
from inprocess import InProcessGrid

from client_app import site
from fedbayes.cli.command import _status
from server_app.stored import RunError
from strategies import StrategyError

Federate = Callable[..., Outcome]
SOURCE = """
from torch import nn

WIDTH = 5

def net(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs[0], WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh(),
                         nn.Linear(WIDTH, classes))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of the user's with `my_net.py` and `own.npz`: three classes of vectors that can be told apart."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "my_net.py").write_text(SOURCE)
    y = np.arange(300) % 3
    x = np.random.default_rng(0).normal(size=(300, 2)) + 4 * np.array([(0, 0), (1, 0), (0, 1)])[y]
    np.savez(folder / "own.npz", x=x, y=np.array(["ash", "elm", "oak"])[y])
    yield folder
    sys.modules.pop("my_net", None)
    forget()


def forget() -> None:
    """What a process remembers of its networks; here one process plays many."""
    site.forget()


WORDS = {"model": "my_net:net", "size": "20+20", "local_steps": 30, "lr_personal": 0.01, "layout": "iid"}


def test_a_federation_learns_with_it(federate: Federate, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(own)
    run = federate(clients=3, dataset=str(own / "own.npz"), zeta=0.1, **WORDS)
    assert run.tensors["w"].shape == (2, 2 * 5 + 5 + 5 + 5 + 5 * 3 + 3)
    assert float(run.rows[-1]["pm_accuracy"]) > 0.7 > float(run.rows[0]["pm_accuracy"])
    assert {row["n_test"] for row in run.clients if row["round"] == "4"} == {"20"}


def test_a_missing_module_is_told_by_the_site(federate: Federate, own: Path) -> None:
    with pytest.raises(StrategyError, match=r'site 0: my_net:net cannot be imported: .*no module "my_net"'):
        federate(clients=3, dataset=str(own / "own.npz"), **WORDS)
    assert not federate.latest.folder.exists()  # type: ignore[attr-defined]


def test_sites_with_different_networks_are_both_named(
    federate: Federate, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own)
    grid = InProcessGrid({}, 3)
    asked: list[int] = []

    def interfere(number: int, message: Message, reply: Message) -> Message:
        asked.append(number)
        if number == 1:  # the next site to be asked has edited its copy
            sys.modules["my_net"].WIDTH = 6  # type: ignore[attr-defined]
            forget()
        return reply

    grid.interfere = interfere
    with pytest.raises(
        StrategyError, match=r'Sites "0" and "2" have different models: \w+ .* and \w+ for inputs'
    ):
        federate(grid=grid, dataset=str(own / "own.npz"), min_clients=3, **WORDS)
    assert asked == [0, 1, 2]


def test_a_coordinator_with_another_network_is_named(
    federate: Federate, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(own)
    grid = InProcessGrid({}, 2)

    def interfere(number: int, message: Message, reply: Message) -> Message:
        if number == 1:
            sys.modules["my_net"].WIDTH = 6  # type: ignore[attr-defined]
        return reply

    grid.interfere = interfere
    with pytest.raises(RunError, match='The coordinator and site "0" have different models'):
        federate(grid=grid, dataset=str(own / "own.npz"), **WORDS)


def test_a_real_simulation_finds_it_in_the_folder_where_the_command_is_started(
    federate: Federate, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = SMALL | {key.replace("_", "-"): value for key, value in WORDS.items()} | {"dataset": "own.npz"}
    # As the installed script starts it: Python itself does not look into the working directory.
    script = "import sys; sys.path.remove(''); from fedbayes.cli.command import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, "run", *(f"{key}={value}" for key, value in words.items()),
         "run-name=real", "--clients", "3"],
        cwd=own, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.syspath_prepend(own)
    here = federate("here", clients=3, **(WORDS | {"dataset": str(own / "own.npz")}))
    assert Outcome(own / "runs" / "real").metrics == here.metrics


def test_predict_export_and_adapt_find_it_there_too(
    federate: Federate, own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.syspath_prepend(own)
        run = federate(clients=3, dataset=str(own / "own.npz"), **(WORDS | {"rounds": 1, "local_steps": 3}))
    place = f"out-dir={run.folder.parent}"
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    sys.modules.pop("my_net", None)
    assert _status(["adapt", "run", str(own / "own.npz"), "--out", str(own / "mine"), place]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedbayes: The run run cannot be used here: my_net:net cannot be imported")
    monkeypatch.chdir(own)
    for words in (
        ["predict", "run/0", "own.npz", "--out", "said.csv"],
        ["export", "run/global", "--out", "exported"],
        ["adapt", "run", "own.npz", "--out", "mine", "rounds=1"],
    ):
        sys.modules.pop("my_net", None)
        assert _status([*words, place]) == 0, capsys.readouterr().err
