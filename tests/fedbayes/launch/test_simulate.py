"""How a run ends: exit status, state, messages and files, with the engine's part played by a script."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from fedbayes.cli.progress import RunProgress
from fedbayes.launch import simulate
from fedbayes.launch.plan import Plan, plan_resume, plan_run
from fedbayes.launch.run_folder import LOCK
from server_app.events import PREFIX

Script = Callable[[Plan], Iterator[str]]
MakeRun = Callable[..., Path]


def event(name: str, **fields: object) -> str:
    return PREFIX + json.dumps({"event": name, **fields})


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], None]:
    """Let a script stand for the federation: it yields the lines of log."""

    def use(script: Script, failed: bool = False) -> None:
        class Carrier:
            marker = "0123456789abcdef"
            starting = "starting…"

            def __init__(self, plan: Plan, engine: str, _address: str | None) -> None:
                assert engine == "embedded"
                self.plan = plan

            def start(self) -> None:
                assert (self.plan.folder / LOCK).exists()
                (self.plan.folder / "log.txt").write_text("")

            def lines(self) -> Iterator[str]:
                return script(self.plan)

            def says_failed(self) -> bool:
                return failed

            def end(self) -> None:
                os.kill(os.getpid(), signal.SIGINT)  # a second Ctrl-C must not disturb the cleaning up

        monkeypatch.setattr(simulate, "engine_for", Carrier)

    return use


def plan_of(*, resume: str | None = None, **words: object) -> Plan:
    if resume:
        return plan_resume(resume, words, None)
    return plan_run({"run-name": "a", **words}, None)


def state(folder: Path) -> tuple[str, str]:
    config = json.loads((folder / "config.json").read_text())
    return config["state"], config["message"]


def test_a_finished_run(
    play: Callable[..., None], make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("a", state="running", saved=2, rounds=2, rows=[{"round": 2, "gm_accuracy": 0.5}])

    def script(plan: Plan) -> Iterator[str]:
        yield event("start", round=2, rounds=2)
        yield event("round", round=2, rounds=2, seconds=1.5)
        yield event("evaluated", round=2, pm_accuracy=None, gm_accuracy=0.5)
        yield event("finished", round=2)

    play(script)
    assert simulate.simulate(plan_of(resume="a"), Console(width=140)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "round 2/2  GM 0.500  1.50 s/round" in lines
    assert "Run folder:   runs/a" in lines
    assert not (folder / LOCK).exists()


def test_finished_is_not_enough_when_the_engine_says_failed(
    play: Callable[..., None], make_run: MakeRun
) -> None:
    make_run("a", state="running", saved=1, rounds=2)
    play(lambda _: iter([event("finished", round=2)]), failed=True)
    assert simulate.simulate(plan_of(resume="a"), Console()) == 1


def test_a_failure_before_the_run_began_leaves_nothing(
    play: Callable[..., None], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play(lambda _: iter(["INFO : hm", event("error", message="Site 3 has no data.")]))
    assert simulate.simulate(plan_of(), Console()) == 1
    assert capsys.readouterr().err == "fedbayes: Site 3 has no data.\n"
    assert list(here.iterdir()) == []


def test_a_crash_is_explained_by_the_log(
    play: Callable[..., None], make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("a", state="running", saved=1, rounds=9)
    play(lambda _: iter(["INFO : hm", "Traceback", "   ^^^^", "ValueError: a bug"]))
    assert simulate.simulate(plan_of(resume="a"), Console()) == 1
    assert capsys.readouterr().err.splitlines() == [
        "fedbayes: The run failed.",
        "  Traceback",
        "  ValueError: a bug",
        "1 of 9 rounds are saved in runs/a. The log is runs/a/log.txt.",
        "Resume with:  fedbayes run --resume a",
    ]
    assert state(folder) == ("failed", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_and_names_the_command_that_resumes_it(
    play: Callable[..., None], make_run: MakeRun, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    folder = make_run("a", state="running", saved=4, rounds=9)

    def script(plan: Plan) -> Iterator[str]:
        yield event("start", round=5, rounds=9)
        os.kill(os.getpid(), number)
        time.sleep(5)
        raise AssertionError("not stopped")

    play(script)
    before = signal.getsignal(number)
    assert simulate.simulate(plan_of(resume="a"), Console(width=140)) == 130
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Stopped. 4 of 9 rounds are saved in runs/a.",
        "Resume with:  fedbayes run --resume a",
    ]
    assert state(folder) == ("stopped", "")
    assert "The run was stopped before its end" in (folder / "report.html").read_text("utf-8")
    assert not (folder / LOCK).exists()
    assert signal.getsignal(number) == before


def test_a_warning_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(Console(width=80), "a") as progress:
        for _ in range(3):
            progress.show({"event": "warning", "message": "site 3 [slow]"})
    assert capsys.readouterr().out.splitlines() == ["a: starting…", "warning: site 3 [slow]"]
