"""`fedbayes settings`, and settings from a file."""

from pathlib import Path

import pytest

from fedbayes.cli import command
from fedbayes.cli.command import _status
from fedbayes.cli.settings import explained, from_file
from fedbayes.errors import CommandError
from fedbayes.launch.plan import Plan
from fedbayes.protocol.settings import defaults


def test_every_setting_is_there_with_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    found = {one.key: one for one in explained()}
    assert set(found) == set(defaults())
    assert all(one.takes and one.words and "](" not in one.words for one in found.values())
    assert found["categories"].takes == "sex:f|m;stage:I|II"
    assert _status(["settings"]) == 0
    said = capsys.readouterr().out
    assert all(key in said for key in defaults())


def test_a_word_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    assert _status(["settings", "dirichlet"]) == 0
    said = capsys.readouterr().out
    assert "dirichlet-alpha" in said and "0.5" in said and "rho-init" not in said
    assert _status(["settings", "nonsense"]) == 2
    assert "No setting speaks of" in capsys.readouterr().err


def test_a_run_takes_its_settings_from_a_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Plan] = []
    monkeypatch.setattr("fedbayes.launch.simulate.simulate", lambda plan, *_: plans.append(plan) or 0)
    (here / "exp.toml").write_text('method = "pfedme"\nrounds = 7\nseed = 3\n[pfedme]\npenalty = 12.0\n')
    with pytest.raises(SystemExit) as ended:
        command.main(["run", "-c", "exp.toml", "seed=4", "size=4+4", "--clients", "2"])
    assert ended.value.code == 0
    found = plans[0].settings.as_config()
    assert (found["method"], found["rounds"], found["seed"]) == ("pfedme", 7, 4), "words go before the file"
    assert float(found["pfedme.penalty"]) == 12.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rounds = ", "is no TOML file"),
        ("resume = true", "resume is not a setting to give"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_sentence(here: Path, text: str | None, sentence: str) -> None:
    if text is not None:
        (here / "exp.toml").write_text(text)
    with pytest.raises(CommandError, match=sentence):
        from_file(here / "exp.toml")
    assert _status(["run", "-c", "exp.toml"]) == 2


def test_an_unknown_key_in_a_file_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "exp.toml").write_text("round = 3\n")
    assert _status(["run", "-c", "exp.toml"]) == 2
    assert capsys.readouterr().err == 'fedbayes: There is no setting "round"; did you mean "rounds"?\n'
