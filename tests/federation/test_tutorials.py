"""The researcher's tutorial, word by word, in an empty folder; test_tutorial_pages has the other two."""

import csv
from pathlib import Path

import pytest
from tutorials import sections, words_of

from fedbayes.cli import command
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


@pytest.mark.parametrize("page", ["site", "coordinator"])
def test_every_command_of_the_other_pages_is_one(page: str) -> None:
    """They are followed with real processes by `make test-federation`; here, that nothing is misspelt."""
    import typer

    known = typer.main.get_group(command.app).commands
    commands = [
        words_of(step) for steps in sections(page).values() for language, step in steps if not language
    ]
    assert len(commands) >= 4 and {words[0] for words in commands} <= set(known)
