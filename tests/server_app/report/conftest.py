"""Run folders made by hand, with figures that a reader can check."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from handmade import MakeRun, Row, write_csv
from safetensors.torch import save_file

from fedbayes.protocol.settings import defaults
from server_app.evaluations import append_evaluation
from server_app.report.files import Run, read_run


@pytest.fixture
def make(tmp_path: Path) -> MakeRun:
    """make("a", rows=…, clients=…, evaluations={round: evidence}, clusters=…, tensors=…, **settings)"""

    def run(
        name: str = "a",
        rows: Sequence[Row] = (),
        clients: Sequence[Row] = (),
        evaluations: Mapping[int, Mapping[str, Any]] | None = None,
        clusters: Mapping[str, Any] | None = None,
        tensors: Mapping[str, torch.Tensor] | None = None,
        config: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        content = {
            "format": 1, "fedbayes": "0.1.0", "uuid": "u", "run": name, "created": "2026-01-02T03:04:05Z",
            "state": "finished", "clients": 2, "classes": ["cat", "dog"], "layers": {"weight": 3, "bias": 1},
            "sites": {site: {"n_train": 10, "n_test": 20} for site in ("0", "1")},
            "settings": defaults() | {"run-name": name} | given, **(config or {}),
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(content))
        write_csv(folder / "rounds.csv", rows or [{"round": 0}])
        write_csv(folder / "clients.csv", clients or [{"round": 0, "site": "0", "status": "ok"}])
        for number, evidence in (evaluations or {}).items():
            append_evaluation(folder, number, evidence)
        if clusters is not None:
            (folder / "clusters.json").write_text(json.dumps(clusters))
        tensors = tensors or {"w": torch.zeros(2, 4)}
        save_file(
            dict(tensors),
            folder / "checkpoint.safetensors",
            {"format": "1", "round": str((rows or [{"round": 0}])[-1]["round"]), "memory": "{}"},
        )
        return folder

    return run


@pytest.fixture
def run_of(make: MakeRun) -> Callable[..., Run]:
    return lambda *arguments, **content: read_run(make(*arguments, **content))
