"""One small table with real runs: two methods, two at once, on the digits; stopped, and gone on with."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbayes.cli import command
from fedbayes.reproduce import cells
from fedbayes.reproduce.ledger import Ledger
from fedbayes.reproduce.recipes import RECIPES, Recipe

DIGITS = """
import sys
from fedbayes.cli import command
from fedbayes.reproduce import cells
from fedbayes.reproduce.recipes import RECIPES, Recipe
cells.DATA["mnist"] = cells.Data("dataset=digits", 2)
RECIPES["fedavg"] = RECIPES["local"] = Recipe(dnn="local-steps=1 batch-size=5")
command.main(sys.argv[1:])
"""


@pytest.fixture
def reproduce(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setitem(cells.DATA, "mnist", cells.Data("dataset=digits", 4))
    monkeypatch.setitem(RECIPES, "pfedbayes", Recipe(dnn="local-steps=2"))

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


def test_ctrl_c_stops_all_and_the_command_goes_on(here: Path) -> None:
    words = [
        sys.executable,
        "-c",
        DIGITS,
        "reproduce",
        "table1",
        "--only",
        "mnist/small/fedavg,mnist/small/local",
    ]
    words += ["--rounds", "40", "--jobs", "2"]
    begun = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    folder = here / "runs" / "reproduce"
    try:
        deadline = time.monotonic() + 120
        while len(list(folder.glob("*/checkpoint.safetensors"))) < 2 and begun.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(begun.pid, signal.SIGINT)
        said, _ = begun.communicate(timeout=120)
    finally:
        if begun.poll() is None:
            os.killpg(begun.pid, signal.SIGKILL)
    assert begun.returncode == 130 and "Go on with:  fedbayes reproduce table1" in said
    states = [entry["state"] for entry in json.loads((folder / "ledger.json").read_text())["entries"]]
    assert "stopped" in states
    assert not list(folder.glob("*/lock.json"))
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    assert {one.state for one in Ledger(folder / "ledger.json").entries} == {"finished"}
    begun_once = [log.read_text().count("\n=== ") for log in folder.glob("*/log.txt")]
    assert sorted(begun_once) == [1 if state == "finished" else 2 for state in sorted(states)]
