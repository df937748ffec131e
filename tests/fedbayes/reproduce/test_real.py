"""One small table with real runs: two methods, two at once, on the digits; stopped, and gone on with."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbayes.cli import command
from fedbayes.reproduce import cells
from fedbayes.reproduce.ledger import Ledger
from fedbayes.reproduce.recipes import RECIPES, Recipe
from server_app.stored import read_config


@pytest.fixture
def reproduce(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setitem(cells.DATA, "mnist", cells.Data("dataset=digits", 4))
    for method in ("pfedbayes", "fedavg", "local"):
        monkeypatch.setitem(RECIPES, method, Recipe(dnn="local-steps=2 batch-size=10"))

    def reproduced(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            command.main(["reproduce", *words])
        return int(str(ended.value.code))

    return reproduced


def test_a_small_table_and_figure_2(reproduce: Callable[..., int], here: Path) -> None:
    assert (
        reproduce("table1", "--only", "mnist/small/fedavg,mnist/small/pfedme", "--rounds", "2", "--jobs", "2")
        == 0
    )
    entries = {one.name: one for one in Ledger(here / "runs" / "reproduce" / "ledger.json").entries}
    assert {name: one.state for name, one in entries.items()} == {
        "mnist/small/fedavg": "finished", "mnist/small/pfedme": "finished",
    }  # fmt: skip
    one = entries["mnist/small/pfedme"]
    assert 0 < one.figures["pm_accuracy"] <= 1 and one.seconds > 0
    assert one.curves["pm_accuracy"][-1] == [2, pytest.approx(one.figures["pm_accuracy"], abs=1e-6)]
    assert one.settings["clients"] == 4 and one.settings["dataset"] == "digits"

    assert reproduce("figures", "--only", "entropy") == 0
    (told,) = [one for one in Ledger(here / "runs" / "reproduce" / "ledger.json").entries if one.entropy]
    assert sorted(told.entropy, key=int) == ["0", "1", "10"] and len(told.entropy["10"]) == 4
    page = (here / "runs" / "reproduce" / "figures.html").read_text()
    assert "Figure 2: MNIST medium, pFedBayes" in page and "<svg" in page and "<script" not in page


def test_ctrl_c_stops_all_and_the_command_goes_on(
    reproduce: Callable[..., int], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = here / "runs" / "reproduce"

    def interrupt() -> None:
        while len(list(folder.glob("*/checkpoint.safetensors"))) < 2 and not done.is_set():
            done.wait(0.02)
        if not done.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    done = threading.Event()
    watching = threading.Thread(target=interrupt, daemon=True)
    watching.start()
    words = ["table1", "--only", "mnist/small/fedavg,mnist/small/local", "--rounds", "30", "--jobs", "2"]
    try:
        assert reproduce(*words) == 130
    finally:
        done.set()
    watching.join()
    assert "Go on with:  fedbayes reproduce table1" in capfd.readouterr().out
    states = {one.name: one.state for one in Ledger(folder / "ledger.json").entries}
    assert "stopped" in states.values() and not list(folder.glob("*/lock.json"))
    # One that came to its end in that very moment has nothing left to do.
    ended = {
        one.parent.name
        for one in folder.glob("*/config.json")
        if read_config(one.parent)["state"] == "finished"
    }
    assert reproduce(*words) == 0
    assert {one.state for one in Ledger(folder / "ledger.json").entries} == {"finished"}
    begun = {log.parent.name: log.read_text().count("\n=== ") for log in folder.glob("*/log.txt")}
    assert begun == {name: 1 if name in ended else 2 for name in begun}
