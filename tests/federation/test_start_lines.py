"""What a run says of its network and its data before the first round, and in its report."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Outcome
from rich.console import Console

from client_app import site
from fedbayes.cli.progress import RunProgress

Federate = Callable[..., Outcome]
SOURCE = """
from torch import nn

def net(inputs, classes):
    body = nn.Linear(inputs[0], 5).requires_grad_(False)
    nn.init.constant_(body.weight, 0.5)
    return nn.Sequential(body, nn.Tanh(), nn.Linear(5, classes))
"""


def tables(folder: Path) -> str:
    """Two gardens whose rows are numbered; one writes a class with a capital."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    for name, kinds in (("north", ("ash", "elm")), ("south", ("ash", "Elm"))):
        rows = [f"{i},{draw.normal():.3f},{draw.normal():.3f},{kinds[i % 2]}" for i in range(40)]
        (folder / f"{name}.csv").write_text("\n".join(["tree,a,b,kind", *rows]))
    return str(folder)


def test_weights_classes_and_columns_are_shown_and_doubted(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "frozen_net.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    run = federate(
        clients=2, dataset=tables(tmp_path / "gardens"), model="frozen_net:net", rounds=1, report=True
    )
    lines = [
        "Model frozen_net:net: 18 Bayesian weights, 20 frozen.",
        "3 classes: Elm, ash, elm.",
        "3 columns: tree, a, b.",
    ]
    start = next(one for one in run.events if one["event"] == "start")
    assert start["about"] == lines
    page = (run.folder / "report.html").read_text()
    assert all(line in page for line in lines)
    warned = " ".join(run.said("warning"))
    assert '"Elm" and "elm" are nearly the same name' in warned
    assert 'Only one site has the classes "elm" (north), "Elm" (south).' in warned
    assert 'The column "tree" is different in every row' in warned
    console = Console(record=True, width=100)
    with RunProgress(console, "run") as progress:
        progress.show(start)
    assert lines[0] in console.export_text()
    sys.modules.pop("frozen_net", None)
    site.forget()


def test_plain_weights_are_called_plain(federate: Federate) -> None:
    run = federate(method="fedavg", rounds=1)
    start = next(one for one in run.events if one["event"] == "start")
    assert start["about"][:2] == [
        "Model dnn: 7,510 plain weights.",
        "10 classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9.",
    ]
