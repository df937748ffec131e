"""The page for newcomers: FedProx, added again from docs/architecture.md alone, is FedProx to the digit."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Outcome

from client_app.site import forget

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_pages_fedprox_is_fedprox(
    federate: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = dict(re.findall(r"`([\w/]+\.py)`:\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
    folder = tmp_path / "newcomers" / "fedprox"
    folder.mkdir(parents=True)
    (folder / "server.py").write_text(blocks["strategies/fedprox.py"], "utf-8")
    (folder / "client.py").write_text(blocks["client_app/methods/fedprox.py"], "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    ours = federate("ours", method="fedprox", proximal=0.5)
    again = federate("again", method="newcomers.fedprox", proximal=0.5)
    assert again.metrics == ours.metrics and torch.equal(again.tensors["w"], ours.tensors["w"])
    plain = federate("plain", method="fedavg")
    assert plain.metrics != ours.metrics
    forget()
