"""`fedbayes methods`: what the code says of the methods, in a table, at length and in the documentation."""

import tomllib
from pathlib import Path

import pytest

from fedbayes.cli.command import _status
from fedbayes.cli.methods import BEGIN, END, as_markdown, write_between
from fedbayes.errors import CommandError
from fedbayes.launch.app_bundle import methods
from fedbayes.launch.catalogue import catalogue, entry
from fedbayes.launch.methods import keys_of
from fedbayes.protocol.settings import Settings, app_file, flattened

PAGE = Path(__file__).parents[3] / "docs" / "methods.md"


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert _status(["methods", *words]) == status
    heard = capsys.readouterr()
    return heard.err if status else heard.out


def test_the_page_is_what_the_code_says() -> None:
    text = PAGE.read_text("utf-8")
    made = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert made == as_markdown(catalogue()), "fedbayes methods --markdown --to docs/methods.md"


def test_every_method_is_there_with_the_settings_that_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    table = said(capsys)
    shared = {str(field.alias) for field in Settings.model_fields.values()}
    usual = flattened(tomllib.loads(app_file().read_text("utf-8"))["tool"]["flwr"]["app"]["config"])
    for name in methods():
        assert f"│ {name} " in table
        one = entry(name)
        own = {setting.key: setting.default for setting in one.settings}
        assert own == {key: usual[key] for key in keys_of(name) - shared}
        assert all(setting.takes for setting in one.settings), "what it takes, in words"
        detail = said(capsys, name)
        assert one.title in detail and all(key in detail for key in own)
        assert one.notes[0].splitlines()[0] in detail


def test_what_is_derived() -> None:
    found = {name: entry(name) for name in ("pfedbayes", "cfedbayes", "ifca", "fesem", "local", "sfedbayes")}
    assert {name: (one.receives, one.sends) for name, one in found.items()} == {
        "pfedbayes": ("(μ, ρ)", "(μ, ρ)"),
        "cfedbayes": ("K × (μ, ρ)", "(μ, ρ)"),
        "ifca": ("K × θ", "θ"),
        "fesem": ("θ", "θ"),
        "local": ("θ", "nothing"),
        "sfedbayes": ("(μ, ρ, λ)", "(μ, ρ, λ)"),
    }
    assert {name: one.models for name, one in found.items()} == {
        "pfedbayes": ("pm", "gm"), "cfedbayes": ("pm", "gm"), "sfedbayes": ("pm", "gm"),
        "ifca": ("gm",), "fesem": ("gm",), "local": ("pm",),
    }  # fmt: skip
    assert entry("fedcfl").traits == (
        "needs every site in every round",
        "the server sees each upload, and keeps a round's",
        "has clusters of clients",
    )
    assert "1 exchange with all sites before round 1" in found["cfedbayes"].traits
    assert entry("fedavg").traits == ()


def test_a_method_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    detail = said(capsys, "elsewhere.ensemble")
    assert "ensemble.mix" in detail and "0.5" in detail
    assert "cannot be imported" in said(capsys, "no_such_package.method", status=2)


def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert said(capsys, "nope", status=2).startswith('fedbayes: There is no method "nope"; there are apfl, ')
    both = "fedbayes: `fedbayes methods` takes a NAME, or --markdown, and --to FILE only with that.\n"
    assert said(capsys, "fedavg", "--markdown", status=2) == said(capsys, "--to", "x", status=2) == both
    assert "cannot be used: No such file" in said(capsys, "--markdown", "--to", str(tmp_path / "x"), status=2)


def test_what_stands_outside_of_the_marks_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nBy hand.\n")
    write_between(page, "new")
    assert page.read_text() == f"# Title\n\n{BEGIN}\nnew\n{END}\n\nBy hand.\n"
    page.write_text("no place")
    with pytest.raises(CommandError, match="has no place for the table"):
        write_between(page, "new")
    assert page.read_text() == "no place"
