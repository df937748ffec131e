"""Flower's own simulation, by our command and by its own: Ray, processes, SIGKILL, going on under another engine."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from harness import SMALL, Outcome

from fedbayes.launch.flower import environment, free_port, program
from fedbayes.launch.local import _is_healthy
from server_app.stored import read_rows

ROUNDS = 24
HERE = Path(__file__).parent


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
    """With a method from the folder where the command is started, tests/federation."""
    out = tmp_path / "out"
    late = {"round-timeout": 1e-6}  # which nobody is in a simulation
    own = {"method": "elsewhere.ensemble", "ensemble.mix": 0.2}
    words = [f"{key}={value}" for key, value in (SMALL | late | own | {"rounds": ROUNDS}).items()]
    environment = {**os.environ, "COLUMNS": "100", "PYTHONPATH": str(HERE.parents[1])}
    with (tmp_path / "first.log").open("w") as log:
        first = subprocess.Popen(
            command("run", *words, "run-name=run", f"out-dir={out}", "--clients=4", "--engine=flower"),
            cwd=HERE, env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        deadline = time.monotonic() + 400
        while len(read_rows(out / "run" / "rounds.csv")) < 3:
            assert first.poll() is None and time.monotonic() < deadline, (tmp_path / "first.log").read_text()
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
    rows_at_kill = len(read_rows(out / "run" / "rounds.csv"))
    assert rows_at_kill < ROUNDS, "it was killed in the middle"

    again = subprocess.run(
        command("run", "--resume", "run", f"out-dir={out}"),  # on the embedded engine, which is another matter
        cwd=tmp_path, env=environment | {"PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(HERE)))},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    assert str(Path("out") / "run") in again.stdout, "the closing words say where the run folder is"

    resumed = Outcome(out / "run")
    undisturbed = federate("undisturbed", rounds=ROUNDS, **own)  # in this process, without Flower's runtime
    assert resumed.metrics == undisturbed.metrics
    assert resumed.state == "finished"
    assert not processes_below(out), "nothing is left behind"
    assert sorted(path.name for path in (out / "run").iterdir() if path.name != ".writer.lock") == [
        "checkpoint.safetensors", "clients.csv", "config.json", "evaluations.jsonl", "log.txt", "report.html",
        "rounds.csv",
    ]  # fmt: skip


@pytest.mark.deployment
def test_flowers_own_command(federate: Callable[..., Outcome], tmp_path: Path) -> None:
    """`flwr run .` in a checkout, as docs/architecture.md has it, with a SuperLink that is started and ended here."""
    settings = SMALL | {"rounds": 2, "run-name": "run", "out-dir": str(tmp_path / "out")}
    given = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in settings.items()
    )
    words = [
        "run",
        ".",
        "--stream",
        "--federation-config",
        "num-supernodes=4 client-resources-num-cpus=1",
        "-c",
        given,
    ]
    home, port = tmp_path / "flower", str(free_port())  # Flower's own port may be another's
    home.mkdir()
    connection = f'[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(f'[superlink]\ndefault = "local"\n\n{connection}')
    here = {
        "cwd": Path(__file__).parents[2],
        "env": environment() | {"FLWR_HOME": str(home), "COLUMNS": "200", "RAY_ADDRESS": "local"},
    }
    link = ["--insecure", "--simulation", "--isolation", "subprocess", "--host", "127.0.0.1", "--port", port]
    with (tmp_path / "link.log").open("w") as log:
        subprocess.Popen([program("flower-superlink"), *link], **here, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 180
        while not _is_healthy(int(port)):
            assert time.monotonic() < deadline, (tmp_path / "link.log").read_text()
            time.sleep(0.1)
        done = subprocess.run([program("flwr"), *words], **here, capture_output=True, text=True, timeout=900)
    finally:
        for process in processes_below(home):
            process.kill()
    run = Outcome(tmp_path / "out" / "run")
    assert done.returncode == 0 and run.state == "finished", done.stdout + done.stderr
    assert run.metrics == federate("here", rounds=2).metrics
