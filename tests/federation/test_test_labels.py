"""Test labels are for measuring alone: with wrong ones every method ends in the same state, bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Outcome

import strategies
from client_app import site
from client_app.data import ClientData
from client_app.store import read
from fedbayes.launch.app_bundle import methods
from server_app.stored import load_checkpoint

Federate = Callable[..., Outcome]
DATA: dict[str, dict[str, Any]] = {
    "classes": {"dataset": "digits", "size": "4+6"},
    "numbers": {"dataset": "diabetes", "layout": "iid", "size": "40+20"},
}


def poisoned(data: ClientData, device: torch.device) -> ClientData:
    """In place of what moves the data to a client's device."""
    y = data.y_test
    return replace(data, y_test=-y - 1 if y.is_floating_point() else (y + 1) % len(data.classes))


def server(run: Outcome) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The checkpoint's tensors, and what else a method and the stages remember."""
    found = load_checkpoint(run.folder)
    assert found
    return found[1], {key: found[2][key] for key in ("round", "method", "stages")}


def stored(run: Outcome) -> dict[str, dict[str, torch.Tensor]]:
    """All that the clients have on their disks."""
    folder = run.folder.parent / "state" / run.folder.name
    files: list[Path] = sorted(folder.rglob("*.safetensors"))
    return {str(file.relative_to(folder)): read(file)[1] for file in files}


def same(these: dict[str, torch.Tensor], those: dict[str, torch.Tensor]) -> bool:
    return these.keys() == those.keys() and all(torch.equal(these[name], those[name]) for name in these)


CASES = [
    (method, kind)
    for method in methods()
    for kind in DATA
    if kind == "classes" or strategies.load(method).traits.numbers
]


@pytest.mark.parametrize(("method", "kind"), CASES)
def test_labels_of_the_test_set_leave_no_trace(
    federate: Federate, monkeypatch: pytest.MonkeyPatch, method: str, kind: str
) -> None:
    words = {"method": method, "model": "mlp", "rounds": 2, "eval_every": 1, **DATA[kind]}
    if kind == "classes":
        words |= {"validation_fraction": 0.25, "temperature_scaling": True}
    honest = federate("honest", clients=3, **words)
    site.forget()
    monkeypatch.setattr(site, "_moved", poisoned)
    wrong = federate("wrong", clients=3, **words)
    site.forget()
    assert honest.metrics != wrong.metrics, "the wrong labels are there"
    (tensors, facts), (other_tensors, other_facts) = server(honest), server(wrong)
    assert same(tensors, other_tensors) and facts == other_facts
    ours, theirs = stored(honest), stored(wrong)
    assert len(ours) >= 6 and ours.keys() == theirs.keys()
    assert all(same(ours[file], theirs[file]) for file in ours)
