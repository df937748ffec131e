"""The embedded engine: the figures of every other federation, whoever is killed on the way, and nothing left behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from flwr.app import Error, Message
from harness import SMALL, Outcome
from inprocess import InProcessGrid, sites
from rich.console import Console

import strategies
from client_app.site import forget
from fedbayes.cli.progress import RunProgress
from fedbayes.launch.app_bundle import methods
from fedbayes.launch.engine import worker
from fedbayes.launch.engine.embedded import Embedded
from fedbayes.launch.plan import plan_resume, plan_run
from fedbayes.launch.resources import cpus
from fedbayes.launch.simulate import Ended, conduct
from fedbayes.protocol.messages import EXCHANGE, ROUND
from server_app.stored import read_rows

Federate = Callable[..., Outcome]
Run = Callable[..., tuple[Outcome, Ended]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def embed(tmp_path: Path) -> Run:
    """embed(name, clients=4, copy=…, copies=…, **settings) runs one from this process, as the command does."""
    return partial(_embed, tmp_path)


def _embed(
    folder: Path, name: str = "run", clients: int = 4, resume: bool = False, **settings: Any
) -> tuple[Outcome, Ended]:
    how = {key: settings.pop(key) for key in ("copy", "copies") if key in settings}
    words = {key.replace("_", "-"): value for key, value in settings.items()}
    places = {"out-dir": str(folder / "runs"), "run-name": name}
    plan = (
        plan_resume(name, words | {"out-dir": places["out-dir"]}, None)
        if resume
        else plan_run(SMALL | places | words, clients)
    )
    display = RunProgress(Console(width=100, quiet=True), name)
    return Outcome(plan.folder), conduct(plan, Embedded(plan, **how), display)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Into which a client of the method elsewhere.dying falls."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "federation"))
    file = tmp_path / "trap"
    monkeypatch.setenv("TRAP", str(file))
    forget()
    yield file
    forget()


def gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=30)[1]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "pfedbayes", "clients_per_round": 2, "rounds": 5},
        {"method": "sfedbayes", "wire": "bfloat16"},
        {"method": "cfedbayes", "layout": "rotated", "clusters": 2},
        {"method": "local", "threads": 2},
        {"method": "pfedbayes", "secure_sum": True, "clients_per_round": 3},
    ],
)
def test_the_same_figures(federate: Federate, embed: Run, settings: dict[str, Any]) -> None:
    run, ended = embed(**settings)
    assert (ended.status, run.state) == (0, "finished")
    assert run.metrics == federate("here", **settings).metrics
    assert not psutil.Process().children(), "nothing is left"


@pytest.mark.parametrize("method", methods())
def test_every_method_has_the_figures_of_real_sites(
    federate: Federate, embed: Run, tmp_path: Path, method: str
) -> None:
    """In this process, each with a name and a disk of its own; they tell their label counts, which BNFed uses."""
    far = sites(tmp_path / "far", 3, **{"share-labels": True})
    settings = {"method": method, "clients": 3, "rounds": 2, "local_steps": 2, "eval_every": 1}
    run, ended = embed(**settings)
    assert (ended.status, run.state) == (0, "finished")
    here = federate("here", grid=far, **settings)
    assert run.metrics == here.metrics and set(run.tensors) == set(here.tensors)
    assert all(torch.equal(run.tensors[name], tensor) for name, tensor in here.tensors.items())


def test_new_pythons_where_a_process_cannot_be_copied(federate: Federate, embed: Run) -> None:
    run, ended = embed(copy=False, copies=False, rounds=2)
    assert ended.status == 0, ended
    assert run.metrics == federate("here", rounds=2).metrics
    assert not psutil.Process().children()


@pytest.mark.parametrize("copies", [True, False], ids=["copies", "new Pythons"])
def test_a_killed_worker_costs_its_message_only(
    federate: Federate, embed: Run, trap: Path, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    settings = {"method": "elsewhere.dying", "clients": 5}
    monkeypatch.setenv("HOW", "killed")
    trap.touch()
    run, ended = embed(copy=copies, copies=copies, **settings)
    assert ended.status == 0 and not trap.exists()
    assert [row["clients_failed"] for row in run.rows] == ["", "0", "1", "0", "0"]
    (status,) = (row["status"] for row in run.clients if row["status"].startswith("failed"))
    assert status == "failed: the process that served it was killed, perhaps for want of memory"
    assert "site 3 trains" in (run.folder / "log.txt").read_text(), "what a client prints is in the log"

    monkeypatch.setenv("HOW", "raised")  # the same in this process
    trap.touch()
    assert federate("here", **settings).metrics == run.metrics


def test_one_who_fails_is_told_in_its_own_words(
    embed: Run, trap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOW", "raised")
    trap.touch()
    run, ended = embed(method="elsewhere.dying", rounds=2)
    assert ended.status == 0
    assert [row["status"] for row in run.clients if row["status"].startswith("failed")] == [
        "failed: RuntimeError: it died"
    ]
    assert "RuntimeError: it died" in (run.folder / "log.txt").read_text()


def busy(forever: Any) -> None:
    while forever:
        pass


def test_a_simulated_client_is_never_late(embed: Run, federate: Federate) -> None:
    """Not with the shortest of timeouts on a machine that has twice as much else to do as it has cores."""
    processes = [multiprocessing.Process(target=busy, args=(True,), daemon=True) for _ in range(2 * cpus())]
    for process in processes:
        process.start()
    try:
        run, _ = embed(round_timeout=1e-6, wait_timeout=1e-6)
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert run.metrics == federate("here").metrics


def test_the_end_of_whoever_starts_workers_is_a_sentence(embed: Run) -> None:
    before = RunProgress.show

    def show(self: RunProgress, event: dict[str, Any]) -> None:
        before(self, event)
        if event["event"] == "round" and event["round"] == 1:
            (server,) = psutil.Process().children()
            for child in server.children():
                child.kill()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunProgress, "show", show)
        run, ended = embed(rounds=200)
    assert (ended.status, run.state) == (1, "failed")
    assert ended.error == "The process that starts the simulated clients was killed."
    assert not psutil.Process().children()
    resumed, ended = embed(resume=True, rounds=3)
    assert ended.status == 0 and len(resumed.rows) == 4


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fedbayes.cli", "run", *words]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """started(name, rounds, **settings) is the command after its third row."""
    running: list[subprocess.Popen[str]] = []

    def start(name: str, rounds: int, **settings: Any) -> subprocess.Popen[str]:
        given = SMALL | {"rounds": rounds, "run-name": name} | settings
        words = [f"{key}={value}" for key, value in given.items()]
        process = subprocess.Popen(
            command(*words, "--clients=4"),
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        running.append(process)
        deadline = time.monotonic() + 180
        while len(read_rows(tmp_path / "runs" / name / "rounds.csv")) < 3:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.02)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "pfedbayes"},
        {"method": "sfedbayes"},
        {"method": "cfedbayes", "layout": "rotated", "clusters": 2},
        {"method": "fedamp"},  # whose uploads are held until the step
    ],
    ids=lambda settings: settings["method"],
)
def test_killed_and_resumed_it_ends_like_an_undisturbed_one(
    federate: Federate,
    embed: Run,
    started: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    first = started("run", rounds=300, **settings)
    processes = psutil.Process(first.pid).children(recursive=True)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert len(processes) >= 3 and gone(processes), "server, nursery and workers die with the command"
    done = len(read_rows(tmp_path / "runs" / "run" / "rounds.csv"))
    monkeypatch.chdir(tmp_path)
    if settings["method"] == "pfedbayes":
        again = subprocess.run(
            command("--resume", "run", f"rounds={done + 3}"),
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        )  # fmt: skip
        assert again.returncode == 0, again.stdout + again.stderr
    else:  # the same from this process
        _, ended = embed("run", resume=True, rounds=done + 3)
        assert ended.status == 0, ended
    resumed = Outcome(tmp_path / "runs" / "run")
    undisturbed = federate("undisturbed", rounds=done + 3, **settings)
    assert resumed.metrics == undisturbed.metrics and resumed.state == "finished"
    names = {path.name for path in resumed.folder.iterdir() if path.name != ".writer.lock"}
    assert names - {"clusters.json"} == {
        "checkpoint.safetensors", "clients.csv", "config.json", "evaluations.jsonl", "log.txt", "report.html",
        "rounds.csv",
    }  # fmt: skip


def trapped(message: Message) -> bool:
    """Whether it is client 1's message of round 3, the first time that it is sent."""
    ours = message.metadata.dst_node_id in (worker.FIRST_NODE + 1, InProcessGrid.NODES[1])
    due = ours and message.metadata.message_type == "train" and message.content[EXCHANGE][ROUND] == 3
    trap = Path(os.environ["TRAP"])
    if not due or not trap.exists():
        return False
    trap.unlink()
    return True


class Failing(InProcessGrid):
    """As if the process that serves a client were killed."""

    def _answer(self, message: Message) -> Message | None:
        failed = trapped(message)
        return Message(Error(1, "it was killed"), reply_to=message) if failed else super()._answer(message)


@pytest.mark.deployment
@pytest.mark.parametrize("method", methods())
def test_a_worker_is_killed_and_then_the_command_whatever_the_method(
    federate: Federate, tmp_path: Path, trap: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Methods that need every site repeat the round; others go on without the client."""
    as_ever, settings = worker.answer, {"method": method, "local_steps": 2}

    def answer(message: Message, clients: int) -> Message:
        if trapped(message):
            os.kill(os.getpid(), signal.SIGKILL)
        return as_ever(message, clients)

    monkeypatch.setattr(worker, "answer", answer)  # of the workers, too, which are copies of this process
    trap.touch()
    command = multiprocessing.get_context("fork").Process(
        target=_embed, args=(tmp_path,), kwargs={"rounds": 300, **settings}
    )
    command.start()
    rows, deadline = tmp_path / "runs" / "run" / "rounds.csv", time.monotonic() + 120
    while len(read_rows(rows)) < 5:
        assert command.is_alive() and time.monotonic() < deadline
        time.sleep(0.02)
    processes = psutil.Process(command.pid).children(recursive=True)
    command.kill()
    command.join()
    assert not trap.exists() and len(processes) >= 3 and gone(processes)
    done = len(read_rows(rows))
    resumed, ended = _embed(tmp_path, resume=True, rounds=done + 2)
    assert (ended.status, resumed.state) == (0, "finished")
    trap.touch()
    undisturbed = federate("undisturbed", grid=Failing({}, 4), rounds=done + 2, **settings)
    assert resumed.metrics == undisturbed.metrics and not trap.exists()
    again = strategies.load(method).traits.every_site
    assert [row["clients_failed"] for row in resumed.rows].count("1") == (0 if again else 1)


def test_ctrl_c_stops_it_and_says_how_to_go_on(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = started("run", rounds=300)
    processes = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate()
    assert process.returncode == 130 and gone(processes)
    assert "Stopping…" in said and "Resume with:  fedbayes run --resume run" in said
    assert Outcome(tmp_path / "runs" / "run").state == "stopped"
    assert not (tmp_path / "runs" / "run" / "lock.json").exists()


def test_garbage_with_threads_of_its_own_goes_before_anything_is_copied(embed: Run, tmp_path: Path) -> None:
    """In a copy its threads do not exist, and it would wait for them for ever."""

    class Session:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with (tmp_path / "gone").open("a") as file:
                file.write(f"{os.getpid()}\n")

    gc.disable()
    try:
        Session()
        run, _ = embed("garbage", rounds=1)
    finally:
        gc.enable()
    assert run.state == "finished"
    assert (tmp_path / "gone").read_text().split() == [str(os.getpid())]
