"""The library of kernels: built once, found by all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayes_core.fast import compiled


@pytest.mark.usefixtures("compiler")
def test_built_once_and_then_found_without_a_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(compiled.library(), str)
    (file,) = fresh.iterdir()
    built = file.stat().st_mtime_ns
    monkeypatch.setenv("PATH", "")
    compiled.library.cache_clear()
    assert not isinstance(compiled.library(), str)
    assert [found.stat().st_mtime_ns for found in fresh.iterdir()] == [built]


@pytest.mark.usefixtures("compiler")
def test_processes_that_build_at_the_same_time(fresh: Path) -> None:
    code = "from bayes_core.fast import compiled; assert not isinstance(compiled.library(), str)"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, env=dict(os.environ)) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert len(list(fresh.iterdir())) == 1
