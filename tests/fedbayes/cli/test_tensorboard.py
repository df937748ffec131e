"""TensorBoard files, read back by TensorBoard itself."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedbayes.cli import command

tensorboard = pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(one.step, round(one.value, 6)) for one in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_events_become_scalars(tmp_path: Path) -> None:
    from fedbayes.cli.tensorboard import EventFiles

    with closing(EventFiles(tmp_path)) as files:
        files.show({"event": "start", "round": 1, "rounds": 2})
        files.show(
            {"event": "evaluated", "round": 0, "pm_accuracy": 0.25, "gm_accuracy": 0.125, "gm_nll": 2.5}
        )
        files.show({"event": "round", "round": 1, "seconds": 1.5, "bytes_up": 1000, "clients_failed": 0})
        files.show({"event": "warning", "message": "nothing to draw"})
        files.show({"event": "evaluated", "round": 1, "pm_accuracy": 0.75, "pm_point_accuracy": 0.5})
    assert scalars(tmp_path) == {
        "accuracy/personal": [(0, 0.25), (1, 0.75)],
        "accuracy/global": [(0, 0.125)],
        "nll/global": [(0, 2.5)],
        "point_accuracy/personal": [(1, 0.5)],
        "round/seconds": [(1, 1.5)],
        "round/bytes_up": [(1, 1000.0)],
        "round/clients_failed": [(1, 0.0)],
    }


def test_a_methods_own_column_is_a_figure_of_the_round(tmp_path: Path) -> None:
    from fedbayes.cli.tensorboard import EventFiles

    with closing(EventFiles(tmp_path)) as files:
        files.show({"event": "round", "time": 9.0, "round": 3, "rounds": 4, "epsilon": 0.5, "mood": "good"})
    assert scalars(tmp_path) == {"round/epsilon": [(3, 0.5)]}


def test_a_resumed_run_replaces_the_rounds_it_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedbayes.cli import tensorboard as ours

    def attempt(first: int, scores: dict[int, float]) -> None:
        with closing(ours.EventFiles(tmp_path)) as files:
            files.show({"event": "start", "round": first})
            for at, score in scores.items():
                files.show({"event": "evaluated", "round": at, "pm_accuracy": score})

    attempt(1, {0: 0.1, 1: 0.2, 2: 0.3})
    attempt(3, {2: 0.31, 3: 0.4})
    assert scalars(tmp_path)["accuracy/personal"] == [(0, 0.1), (1, 0.2), (2, 0.31), (3, 0.4)]


def test_without_the_package_nothing_is_started(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(SystemExit) as ended:
        command.main(["run", "--tensorboard"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "fedbayes: --tensorboard needs the package tensorboard; install it with `pip install tensorboard`.\n"
    )
    assert list(here.iterdir()) == []


def test_the_display_writes_them_beside_its_own_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from fedbayes.cli.progress import RunProgress

    with RunProgress(Console(width=80), "a", tmp_path / "tensorboard") as progress:
        assert not (tmp_path / "tensorboard").exists(), "nothing before the run begins"
        progress.show({"event": "start", "round": 1, "rounds": 1})
        progress.show({"event": "evaluated", "round": 0, "rounds": 1, "pm_accuracy": 0.5})
    assert scalars(tmp_path / "tensorboard") == {"accuracy/personal": [(0, 0.5)]}
    assert "round 0/1  PM 0.500" in capsys.readouterr().out


def test_the_flag_reaches_the_simulation(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedbayes.launch import simulate
    from fedbayes.launch.plan import Plan

    plans: list[Plan] = []
    record: Callable[..., int] = lambda plan, *_: plans.append(plan) or 0  # noqa: E731
    monkeypatch.setattr(simulate, "simulate", record)
    for words in (["run"], ["run", "--tensorboard"], ["run", "--tensorboard", "--seeds", "1,2"]):
        with pytest.raises(SystemExit):
            command.main(words)
    assert [plan.tensorboard for plan in plans] == [False, True, True, True]
    assert plans[0].event_files is None and plans[1].event_files == plans[1].folder / "tensorboard"
