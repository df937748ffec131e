"""Flower's own simulation through the command: Ray, processes, SIGKILL, and going on under the other engine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from harness import SMALL, Outcome

from server_app.stored import read_rows

ROUNDS = 24


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fedbayes.cli.command", *words]


def processes_below(folder: Path) -> list[psutil.Process]:
    """Whoever still works for a run of this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in value for value in process.environ().values()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_killed_and_resumed_under_another_engine_it_ends_like_an_undisturbed_one(
    federate: Callable[..., Outcome], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = [f"{key}={value}" for key, value in (SMALL | {"rounds": ROUNDS}).items()]
    environment = {**os.environ, "COLUMNS": "100"}
    with (tmp_path / "first.log").open("w") as log:
        first = subprocess.Popen(
            command("run", *words, "run-name=run", f"out-dir={out}", "--clients=4", "--engine=flower"),
            cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        deadline = time.monotonic() + 180
        while len(read_rows(out / "run" / "rounds.csv")) < 3:
            assert first.poll() is None and time.monotonic() < deadline, (tmp_path / "first.log").read_text()
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
    rows_at_kill = len(read_rows(out / "run" / "rounds.csv"))
    assert rows_at_kill < ROUNDS, "it was killed in the middle"

    again = subprocess.run(
        command("run", "--resume", "run", f"out-dir={out}"),  # on the embedded engine, which is another matter
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    assert str(Path("out") / "run") in again.stdout, "the closing words say where the run folder is"

    resumed = Outcome(out / "run")
    undisturbed = federate("undisturbed", rounds=ROUNDS)  # in this process, without Flower's runtime
    assert resumed.metrics == undisturbed.metrics
    assert resumed.state == "finished"
    assert not processes_below(out), "nothing is left behind"
    assert sorted(path.name for path in (out / "run").iterdir() if path.name != ".writer.lock") == [
        "checkpoint.safetensors", "clients.csv", "config.json", "evaluations.jsonl", "log.txt", "report.html",
        "rounds.csv",
    ]  # fmt: skip
