"""`fedbayes runs`: every state, and folders that are no runs or broken ones."""

import fcntl
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from fedbayes.cli import command
from fedbayes.cli.listing import list_runs, runs_table
from fedbayes.launch.run_folder import take_lock
from server_app.stored import read_config

MakeRun = Callable[..., Path]


def show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(["runs", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_runs_with_their_states(make_run: MakeRun, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"round": 1, "pm_accuracy": 0.25, "gm_accuracy": 0.125},
        {"round": 2, "pm_accuracy": 0.75, "gm_accuracy": 0.5},
        {"round": 3},
    ]
    make_run("done", saved=3, rows=rows, rounds=3, created="2026-01-01T00:00:00Z")
    make_run("killed", state="running", saved=1, rounds=3, method="fedavg")
    busy = make_run("busy", state="running")
    written = make_run("written", state="running")
    take_lock(busy, "0" * 16)
    (here / "runs" / "notes").mkdir()
    (here / "runs" / "state").mkdir()
    with (written / ".writer.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        runs = {run.name: run for run in list_runs(here / "runs")}
    states = {name: run.state for name, run in runs.items()}
    assert states == {"done": "finished", "killed": "interrupted", "busy": "running", "written": "running"}
    assert next(iter(runs)) == "done"  # the oldest first
    kept = {name: read_config(here / "runs" / name) or {} for name in states}
    assert {name: config["state"] for name, config in kept.items()} == states, "config.json says so, too"
    assert "--resume goes on" in kept["killed"]["message"]
    assert list_runs(here / "runs")[0].state == "finished", "looked at again, nothing changes"
    assert (runs["done"].rounds, runs["done"].personal, runs["done"].global_) == ("3/3", 0.75, 0.5)
    assert (runs["killed"].method, runs["killed"].rounds, runs["killed"].personal) == ("fedavg", "1/3", None)
    table = show(capsys)
    assert "0.750" in table and "0.500" in table and "interrupted" in table


def test_names_are_shown_in_a_narrow_terminal(make_run: MakeRun, here: Path) -> None:
    make_run(
        "a-run-with-a-long-name",
        dataset="a-data-set-of-ones-own.npz",
        rows=[{"round": 1, "pm_accuracy": 0.5}],
    )
    console = Console(width=80, file=io.StringIO())
    console.print(runs_table(list_runs(here / "runs"), 80))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 80
    assert "".join(line[1:17].strip() for line in lines[3:]).startswith("a-run-with-a-long-name"[:16])
    assert "0.500" in lines[3] and "finished" in lines[3]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 7}', '{"format": 1, "settings": 3}'])
def test_a_broken_run_is_listed_as_unreadable(
    make_run: MakeRun, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (make_run("broken") / "config.json").write_text(content)
    table = show(capsys)
    assert "broken" in table and "unreadable" in table


def test_a_damaged_checkpoint_or_lost_config_is_unreadable(make_run: MakeRun, here: Path) -> None:
    (make_run("damaged", saved=2) / "checkpoint.safetensors").write_bytes(b"x")
    (make_run("lost", saved=2) / "config.json").unlink()
    assert {run.name: run.state for run in list_runs(here / "runs")} == {
        "damaged": "unreadable", "lost": "unreadable",
    }  # fmt: skip


def test_no_runs_is_a_sentence_with_a_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys) == f"There are no runs in {here / 'runs'}; `fedbayes run` makes one.\n"
    assert "`fedbayes run 'out-dir=a b'` makes one" in show(capsys, "out-dir=a b")


def test_only_out_dir_is_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["runs", "rounds=3"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == 'fedbayes: `fedbayes runs` takes only out-dir=…, not "rounds".\n'
