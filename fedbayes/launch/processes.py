"""Ending every process of a run, however it was started.

Ray's processes leave their parent's session and Flower's SuperExec has one of its own, so neither process
groups nor parent links find them all. Every process of a run inherits one environment variable with a random
marker and works in one temporary folder, and that finds them.

Run as a script, this file is the run's reaper: it sleeps until the command that started it is gone, for
whatever reason (end, Ctrl-C, SIGKILL, out of memory), and then ends the run's processes. It must not import
anything of this package, so that it starts at once and from any folder.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

MARKER = "FEDBAYES_RUN_MARKER"
MARKER_BYTES = 8
PATIENCE = 4.0  # seconds between asking (SIGTERM) and making sure (SIGKILL)


def temporary_folder(marker: str) -> Path:
    """Where Ray keeps its sockets and logs; not below OUT, as a socket's path has at most 107 characters."""
    return Path("/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()) / f"fedbayes-{marker}"


def members(marker: str) -> list[psutil.Process]:
    """The living processes of a run: by their marker, by a file open in its temporary folder, by descent.

    The marker alone is not enough: a process that changes its title, as Ray's do, may wipe its environment.
    """
    temporary = temporary_folder(marker)
    found: dict[int, psutil.Process] = {}
    others: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.uids().real != os.getuid():
                continue
            ours = process.environ().get(MARKER) == marker or _uses(process, temporary)
            (found if ours else others)[process.pid] = process
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or a zombie
    while more := {pid: process for pid, process in others.items() if _parent(process) in found}:
        found |= more
        others = {pid: process for pid, process in others.items() if pid not in more}
    return list(found.values())


def _uses(process: psutil.Process, folder: Path) -> bool:
    return any(Path(file.path).is_relative_to(folder) for file in process.open_files())


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def end_all(marker: str, patience: float = PATIENCE) -> int:
    """End every process of a run and delete its temporary folder; returns how many processes there were.

    Asks once, waits, then insists. Those once found stay on the list even when their parent, which they were
    known by, has ended; one that was started while others were ended is caught by the next pass.
    """
    known: dict[int, psutil.Process] = {}
    asked: set[int] = set()
    insist_at = time.monotonic() + patience
    give_up_at = insist_at + 10
    while True:
        known |= {process.pid: process for process in members(marker)}
        living = [process for process in known.values() if lives(process)]
        if not living or time.monotonic() > give_up_at:  # only one stuck in the kernel survives SIGKILL
            break
        for process in living:
            try:
                if time.monotonic() > insist_at:
                    process.kill()
                elif process.pid not in asked:
                    asked.add(process.pid)
                    process.terminate()
            except psutil.Error:
                continue
        time.sleep(0.1)
    shutil.rmtree(temporary_folder(marker), ignore_errors=True)
    return len(known)


def lives(process: psutil.Process) -> bool:
    """Whether this very process still runs; one that has ended and was not asked for is still listed."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def is_alive(pid: int, created: float) -> bool:
    """Whether this very process still lives; its number alone may have been given to another one."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 2 and lives(process)
    except psutil.Error:
        return False


def start_reaper(marker: str) -> subprocess.Popen[bytes]:
    """A process that ends the run's others once our end of its pipe closes."""
    environment = {key: value for key, value in os.environ.items() if key != MARKER}
    return subprocess.Popen(
        [sys.executable, "-P", __file__, marker],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    )


def _reap(marker: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # returns when the command has closed its end, or is no more
    end_all(marker)


if __name__ == "__main__":
    _reap(sys.argv[1])
