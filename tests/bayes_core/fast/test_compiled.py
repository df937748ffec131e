"""The library of kernels: built once, found by all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayes_core.fast import compiled


@pytest.mark.usefixtures("compiler")
def test_built_by_two_processes_at_once_and_then_found_without_a_compiler(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from bayes_core.fast import compiled; assert not isinstance(compiled.library(), str)"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, env=dict(os.environ)) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    (file,) = fresh.iterdir()
    built = file.stat().st_mtime_ns
    monkeypatch.setenv("PATH", "")
    assert not isinstance(compiled.library(), str)
    assert [found.stat().st_mtime_ns for found in fresh.iterdir()] == [built]


def test_what_the_users_cache_lacks_is_kept_in_the_folder_that_is_named(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = compiled.cached()
    assert usual.parent == fresh
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path / "named"))
    assert compiled.cached() == tmp_path / "named" / usual.name
    fresh.mkdir()
    usual.touch()
    assert compiled.cached() == usual
