"""Tuning real runs: through the command, and with test labels that lie."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import SMALL
from inprocess import Clock, InProcessGrid

from client_app import site
from client_app.data import ClientData
from client_app.data import load as load_data
from fedbayes.cli.command import _status
from fedbayes.launch.plan import Plan
from fedbayes.launch.tune import Tuning, best
from server_app import app as server
from server_app.rows import with_interval
from server_app.stored import read_rows

WORDS = {key: str(value) for key, value in (SMALL | {"rounds": 2, "size": "10+10"}).items()}


def test_a_real_tuning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [f"{key}={value}" for key, value in WORDS.items()]
    command = ["tune", *words, "method=fedavg", "lr-global=0.0001,0.01", "run-name=real", f"out-dir={tmp_path}",
               "--clients", "3"]  # fmt: skip
    assert _status(command) == 0
    folder = tmp_path / "real-tune"
    found = json.loads((folder / "tune.json").read_text())
    assert found["best"]["fedavg"]["values"] == {"lr-global": "0.01"}, "the other has hardly moved"
    for point in found["points"]:
        rows = read_rows(folder / point["run"] / "rounds.csv")
        assert point["objective"] == float(rows[-1]["gm_val_nll"]) and rows[-1]["round"] == "2"
    before = {
        file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.name.endswith("safetensors")
    }
    assert before
    sites = json.loads((folder / found["points"][0]["run"] / "config.json").read_text())["sites"]
    held = sum(one["n_validation"] for one in sites.values())
    words = [with_interval(point["gm_val_accuracy"], held) for point in found["points"]]
    said = capfd.readouterr().out
    assert held == 30 and all(one in said for one in words), "a fifth of 5 classes with 10 examples each"
    assert _status(command) == 0
    assert {file: file.stat().st_mtime_ns for file in before} == before, "nothing was run again"
    assert "lr-global=0.01 --clients 3" in capfd.readouterr().out


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], int]:
    monkeypatch.setattr("strategies.rounds.roster.SETTLE", 0.0)
    monkeypatch.setattr("strategies.rounds.exchange.time", Clock())
    monkeypatch.setattr(server, "emit", lambda event, **said: None)

    def start(plan: Plan) -> int:
        grid = InProcessGrid({}, plan.clients)
        for context in grid.contexts.values():
            context.run_config = plan.settings.as_config()
        server.run(grid, plan.settings)
        return 0

    return start


@pytest.mark.parametrize("method", ["pfedbayes", "ifca"])
def test_lies_in_the_test_labels_do_not_move_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Callable[[Plan], int], method: str
) -> None:
    def lying(*arguments: Any) -> ClientData:
        data = load_data(*arguments)
        generator = torch.Generator().manual_seed(3)
        return replace(data, y_test=torch.randint(10, data.y_test.shape, generator=generator))

    key = {"pfedbayes": "lr-personal", "ifca": "lr-global"}[method]
    words = WORDS | {
        "method": method,
        key: "0.0001,0.001,0.01",
        "local-steps": "10",
        "out-dir": str(tmp_path),
    }
    chosen, figures, tested = [], [], []
    for name, load in (("honest", load_data), ("lying", lying)):
        site.forget()
        monkeypatch.setattr(site, "load", load)
        tuning = Tuning.of(words | {"run-name": name}, 4)
        outcomes = list(tuning.run(in_process))
        winner = best(outcomes, method)
        assert winner is not None
        chosen.append(dict(winner.point.values))
        figures.append([one.figures for one in outcomes])
        rows = [read_rows(plan.folder / "rounds.csv")[-1] for plan in tuning.plans.values()]
        tested.append([row["gm_accuracy"] for row in rows])
    site.forget()
    assert tested[0] != tested[1], "the lies are in the test figures"
    assert figures[0] == figures[1] and chosen[0] == chosen[1]
