"""Locks and the processes behind them: real ones, ended for real."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedbayes.errors import CommandError
from fedbayes.launch.processes import (
    MARKER,
    MARKER_BYTES,
    end_all,
    is_alive,
    members,
    start_reaper,
    temporary_folder,
)
from fedbayes.launch.run_folder import LOCK, is_held, owner, owns_lock, release_lock, take_lock


@pytest.fixture
def marker() -> str:
    return secrets.token_hex(MARKER_BYTES)


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def sleeper(marker: str | None = None, program: str = "") -> subprocess.Popen[bytes]:
    """A process that would sleep for a minute; it says when it is ready."""
    environment = os.environ | ({MARKER: marker} if marker else {})
    return subprocess.Popen(
        [sys.executable, "-c", f"{program}\nimport time; print('ready', flush=True); time.sleep(60)"],
        env=environment, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def ready(child: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    return child


def test_a_stale_lock_is_taken_over_and_its_orphan_ended(
    tmp_path: Path, marker: str, children: list[subprocess.Popen[bytes]]
) -> None:
    orphan = ready(sleeper(marker))
    bystander = ready(sleeper())
    children += [orphan, bystander]
    (tmp_path / LOCK).write_text(f'{{"pid": 999999999, "created": 1.0, "marker": "{marker}"}}')
    note = take_lock(tmp_path, secrets.token_hex(MARKER_BYTES))
    assert note == "Ended 1 process that an earlier attempt had left running."
    assert orphan.wait(timeout=5) != 0
    assert bystander.poll() is None
    assert owner(tmp_path) == os.getpid()


def test_a_living_owner_is_not_disturbed(
    tmp_path: Path, marker: str, children: list[subprocess.Popen[bytes]]
) -> None:
    children.append(command := ready(sleeper(marker)))
    created = psutil.Process(command.pid).create_time()
    (tmp_path / LOCK).write_text(f'{{"pid": {command.pid}, "created": {created}, "marker": "{marker}"}}')
    with pytest.raises(CommandError, match=f"Run {tmp_path.name} is being run by process {command.pid}\\."):
        take_lock(tmp_path, secrets.token_hex(MARKER_BYTES))
    assert command.poll() is None
    assert is_held(tmp_path)


def test_a_process_number_given_away_again_is_not_the_owner() -> None:
    assert is_alive(os.getpid(), psutil.Process().create_time())
    assert not is_alive(os.getpid(), psutil.Process().create_time() - 100)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"marker": "", "pid": "x"}', '{"marker": "../../etc"}'])
def test_a_damaged_lock_harms_nobody(tmp_path: Path, marker: str, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    assert take_lock(tmp_path, marker) is None
    assert owns_lock(tmp_path, marker)
    release_lock(tmp_path, marker)
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_releases(tmp_path: Path, marker: str) -> None:
    take_lock(tmp_path, marker)
    release_lock(tmp_path, "0" * 16)
    assert (tmp_path / LOCK).exists()


def test_a_process_that_lost_its_marker_is_found_by_its_open_file_and_by_its_parent(
    marker: str, children: list[subprocess.Popen[bytes]]
) -> None:
    temporary_folder(marker).mkdir()
    opens = f"stream = open({str(temporary_folder(marker) / 'log')!r}, 'w')"
    starts = f"import os, subprocess, sys; os.environ.pop({MARKER!r})\nsubprocess.Popen(['sleep', '60'])"
    children += [ready(sleeper(program=opens)), ready(sleeper(marker, starts))]
    found = members(marker)
    assert {child.pid for child in children} < {process.pid for process in found}
    assert len(found) == 3
    assert end_all(marker) == 3
    assert not temporary_folder(marker).exists()
    assert members(marker) == []


def test_a_process_that_will_not_listen_is_killed(
    marker: str, children: list[subprocess.Popen[bytes]]
) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    children.append(child := ready(sleeper(marker, deaf)))
    end_all(marker, patience=0.3)
    assert child.wait(timeout=5) == -9


def test_the_reaper_works_when_its_command_is_gone(
    marker: str, children: list[subprocess.Popen[bytes]]
) -> None:
    children.append(orphan := ready(sleeper(marker)))
    children.append(reaper := start_reaper(marker))
    time.sleep(0.5)
    assert orphan.poll() is None
    assert reaper.stdin is not None
    reaper.stdin.close()  # as the kernel does for a command that was killed
    assert orphan.wait(timeout=10) != 0
    assert reaper.wait(timeout=10) == 0
