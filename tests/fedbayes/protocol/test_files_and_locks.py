"""Files that are replaced whole, and locks with a bounded wait."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedbayes.protocol import files


class Busy(Exception):
    pass


def test_a_failure_leaves_the_old_file_and_no_rest(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    files.replace_file(file, b"old")
    with pytest.raises(KeyboardInterrupt), files.replacing(file) as new:
        new.write_bytes(b"a part")
        raise KeyboardInterrupt
    assert file.read_bytes() == b"old" and [one.name for one in tmp_path.iterdir()] == ["a.json"]
    files.replace_file(file, b"new", durable=False)
    assert file.read_bytes() == b"new"


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with files.replacing(file, shared=True) as slow:
        slow.write_bytes(b"slow")
        with files.replacing(file, shared=True) as fast:
            fast.write_bytes(b"fast")
        assert file.read_bytes() == b"fast"
    assert file.read_bytes() == b"slow"


@pytest.mark.parametrize("durable", [True, False])
def test_only_durable_files_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(files.os, "fsync", synced.append)
    files.replace_file(tmp_path / "a", b"x", durable)
    assert len(synced) == durable


def test_lines_are_added(tmp_path: Path) -> None:
    for text in ("a\r\n", "b\n"):
        files.append_text(tmp_path / "log", text)
    assert (tmp_path / "log").read_bytes() == b"a\r\nb\n", "as they are"


@pytest.mark.parametrize("name", ["folder", "file.lock"])
def test_a_lock_is_one_holders(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / name
    first = files.take_lock(path, 0, Busy())
    began = time.monotonic()
    with pytest.raises(Busy, match="somebody else"), files.locked(path, 0.15, Busy("somebody else")):
        pass
    assert time.monotonic() - began >= 0.15, "it was waited for"
    first.close()
    first.close()
    with files.locked(path, 0, Busy()):
        pass
    files.take_lock(path, 0, Busy()).close()


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, pathlib; from fedbayes.protocol import files; "
        "lock = files.take_lock(pathlib.Path(sys.argv[1]), 0, Exception()); print('held', flush=True); sys.stdin.read()"
    )
    assert not files.is_locked(path), "nobody has made the file yet"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout and holder.stdout.readline() == b"held\n"
        assert files.is_locked(path)
        holder.kill()
    assert not files.is_locked(path)
    files.take_lock(path, 0, Busy()).close()
