"""`fedbayes report` and `fedbayes compare`: what they refuse, and what they write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedbayes.cli import command

MakeRun = Callable[..., Path]


def refuse(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    return output.err.removeprefix("fedbayes: ").strip()


def test_what_is_refused(make_run: MakeRun, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a")
    assert refuse(capsys, "report") == (
        "`fedbayes report` takes the name or folder of a run; `fedbayes runs` lists them."
    )
    assert refuse(capsys, "report", "b") == (
        f'There is no run "b" in {here / "runs"}; `fedbayes runs` lists those there are.'
    )
    assert refuse(capsys, "report", "a", "rounds=3") == (
        '`fedbayes report` takes only out-dir=…, not "rounds".'
    )
    assert refuse(capsys, "compare", "a") == "`fedbayes compare` takes two runs or more, not 1."
    assert refuse(capsys, "compare", "a", "a") == "`fedbayes compare` was given the run a twice."
    (here / "runs" / "a" / "config.json").write_text("{")
    assert "config.json cannot be read" in refuse(capsys, "report", "a")


def test_where_nothing_can_be_written(
    make_run: MakeRun, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run("a", seed=1), make_run("b", seed=2)
    (here / "file").write_text("")
    assert refuse(capsys, "compare", "a", "b", "--to", "file/x").startswith(
        "The comparison cannot be written: "
    )
    (here / "runs" / "a" / "report.html").mkdir()
    assert refuse(capsys, "report", "a").startswith("The report cannot be written: ")


def test_a_run_with_nothing_but_settings_has_a_page(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run("a", state="stopped")
    with pytest.raises(SystemExit) as ended:
        command.main(["report", str(folder)])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    page = (folder / "report.html").read_text("utf-8")
    assert "No round has been measured yet." in page and "rounds.csv is not in the run folder" in page


def test_compare_prints_the_table(make_run: MakeRun, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, accuracy in ((1, 0.5), (2, 0.7)):
        make_run(f"s{seed}", rows=[{"round": 3, "pm_accuracy": accuracy}], seed=seed)
    with pytest.raises(SystemExit) as ended:
        command.main(["compare", "s1", "s2"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "| all runs | 2 | 0.6000 ± 0.1414 |" in output  # sd of two numbers is their distance / √2
    assert output.splitlines()[-3:] == [str(here / f"comparison.{kind}") for kind in ("html", "md", "csv")]


def test_a_wide_comparison_is_turned_for_the_terminal(
    make_run: MakeRun, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"round": 3} | {f"{m}_{k}": 0.5 for m in ("pm", "gm") for k in ("accuracy", "nll", "brier", "ece")}
    names = [f"b{beta}" for beta in range(1, 8)]
    for name in names:
        make_run(name, rows=[row], beta=float(name[1:]), rounds=3)
    with pytest.raises(SystemExit):
        command.main(["compare", *names])
    legend, *parts = capsys.readouterr().out.split("\n\n")
    blocks, (about, *_) = (
        [part for part in parts if part[0] == " "],
        [part for part in parts if part[0] == "7"],
    )
    assert legend.splitlines()[1:] == [f"[{i}] beta={i}.0" for i in range(2, 8)], "every group is named"
    tables = [block.splitlines() for block in blocks]
    assert max(len(line) for table in tables for line in table) <= 80
    assert " ".join(table[0] for table in tables).split() == [f"[{i}]" for i in range(1, 8)], "and shown"
    for table in tables:
        line = next(line for line in table if line.startswith("PM NLL"))
        assert line.split()[2:] == ["0.5000"] * len(table[0].split())
    assert about.startswith("7 runs in 7 groups that differ in beta; last measured round")
    assert "| PM accuracy |" in (here / "comparison.md").read_text()
    assert "<td>PM accuracy</td>" in (here / "comparison.html").read_text()
