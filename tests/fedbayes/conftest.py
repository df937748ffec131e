"""Run folders made by hand, as a ServerApp would have left them."""

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedbayes.protocol.settings import defaults

MakeRun = Callable[..., Path]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def make_run(here: Path) -> MakeRun:
    def make(
        name: str,
        state: str = "finished",
        saved: int = 0,
        rows: Sequence[Mapping[str, Any]] = (),
        clients: int = 10,
        created: str = "2026-01-02T03:04:05Z",
        **settings: Any,
    ) -> Path:
        folder = here / "runs" / name
        folder.mkdir(parents=True)
        places = {"out-dir": str(here / "runs"), "data-dir": str(here / "data"), "run-name": name}
        given = {key.replace("_", "-"): value for key, value in settings.items()}
        config = {
            "format": 1, "uuid": "u", "run": name, "created": created, "state": state, "clients": clients,
            "settings": defaults() | places | given,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
        if saved:
            metadata = {"format": "1", "round": str(saved), "memory": "{}"}
            save_file({"w": np.zeros(3, np.float32)}, folder / "checkpoint.safetensors", metadata)
        if rows:
            columns = list({key: None for row in rows for key in row})
            with (folder / "rounds.csv").open("w", newline="") as stream:
                writer = csv.DictWriter(stream, columns, restval="")
                writer.writeheader()
                writer.writerows(rows)
        return folder

    return make


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Commands that become a server set it for good."""
    before = os.umask(0o022)
    yield
    os.umask(before)
