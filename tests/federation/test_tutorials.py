"""The researcher's tutorial and the page on tables, word by word; test_tutorial_pages has the other tutorials."""

import csv
import re
from pathlib import Path

import pytest
from tutorials import DOCS, sections, words_of

from fedbayes.cli import command
from fedbayes.model.find import find_model
from server_app.stored import read_rows


def test_the_researchers_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    for steps in sections("researcher").values():
        for language, step in steps:
            if language:
                exec(compile(step, "tutorial", "exec"), {})
                continue
            with pytest.raises(SystemExit) as ended:
                command.main(words_of(step))
            assert ended.value.code == 0, (step, capsys.readouterr().err)
    rows = read_rows(tmp_path / "runs" / "first" / "rounds.csv")
    fedavg = read_rows(tmp_path / "runs" / "fedavg" / "rounds.csv")
    assert [int(rows[-1]["round"]), int(fedavg[-1]["round"])] == [12, 10]
    assert float(rows[2]["pm_accuracy"]) > 0.8, "it learns from the first rounds on"
    assert float(rows[-1]["pm_accuracy"]) > max(0.9, float(fedavg[-1]["gm_accuracy"]))
    assert "zeta" in (tmp_path / "both.md").read_text("utf-8")
    with (tmp_path / "answers.csv").open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) in (70, 100)
    assert (tmp_path / "exported" / "network.safetensors").exists()


def test_the_page_on_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs and commands as they stand there, with the processes of a run."""
    pytest.importorskip("onnxruntime")
    page = (DOCS / "tables.md").read_text("utf-8")
    make, use = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(make, "make_wards.py", "exec"), {})
    for line in commands.splitlines():
        with pytest.raises(SystemExit) as ended:
            command.main(words_of(line))
        assert ended.value.code == 0, (line, capsys.readouterr().err)
    assert "accuracy" in capsys.readouterr().err
    with (tmp_path / "answers.csv").open(newline="") as stream:
        assert [row["patient"] for row in csv.DictReader(stream)] == [f"bern-{i}" for i in range(10)]
    found: dict = {}
    exec(compile(use, "without_fedbayes.py", "exec"), found)
    assert "['ill', 'well']" in capsys.readouterr().out
    personal = find_model("wards/bern", tmp_path / "runs")
    ours = personal.point_probabilities(personal.read("bern-new.csv").x).numpy()
    assert abs(found["probabilities"] - ours).max() < 1e-5


@pytest.mark.parametrize("page", ["site", "coordinator"])
def test_every_command_of_the_other_pages_is_one(page: str) -> None:
    """They are followed with real processes by `make test-federation`; here, that nothing is misspelt."""
    import typer

    known = typer.main.get_group(command.app).commands
    commands = [
        words_of(step) for steps in sections(page).values() for language, step in steps if not language
    ]
    assert len(commands) >= 4 and {words[0] for words in commands} <= set(known)
