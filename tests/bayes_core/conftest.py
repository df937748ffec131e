"""One thread: these tensors are tiny, and threads on a busy machine make the tests ten times slower."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bayes_core.fast import compiled

torch.set_num_threads(1)


@pytest.fixture
def compiler() -> None:
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, in a process that has not looked for the library yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    compiled.library.cache_clear()
    yield tmp_path / "fedbayes"
    compiled.library.cache_clear()
