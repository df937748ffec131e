"""The documentation says what is there."""

import re
from pathlib import Path

from fedbayes.protocol.settings import defaults

ROOT = Path(__file__).parent.parent


def test_every_setting_is_documented() -> None:
    text = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert [key for key in defaults() if f"`{key}`" not in text] == []


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_sites_navigation() -> None:
    """`make docs` is strict and fails otherwise; this takes no mkdocs."""
    pages = set(re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert pages - {"index.md", "changelog.md"} == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_tests_that_pages_name_are_there() -> None:
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in ROOT.glob("tests/**/test_*.py")
    }
    names = {name for text in files.values() for name in re.findall(r"def (test_\w+)", text)}
    named = 0
    for page in [ROOT / "README.md", ROOT / "docker" / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text("utf-8")
        for file in re.findall(r"(?:tests/[\w/]+/)?test_\w+\.py", text):
            assert any(path == file or path.endswith("/" + file) for path in files), (
                f"{page.name} names {file}"
            )
        for test, cut in re.findall(r"::(test_\w+)(…?)", text):
            assert test in names or (cut and any(name.startswith(test) for name in names)), (
                f"{page.name}: {test}"
            )
            named += 1
    assert named > 30


def test_the_readmes_commands_on_digits_can_be_run(tmp_path: Path) -> None:
    import shlex

    from fedbayes.cli.command import check_data
    from fedbayes.launch.plan import parse_words, plan_run

    lines = re.findall(r"^(?:\t\$\(VENV\)/bin/)?fedbayes run (.*?)(?:  #.*)?$", _commands(), re.MULTILINE)
    checked = 0
    for line in lines:
        words = [word for word in shlex.split(line) if "=" in word]
        if "dataset=mnist" in words or "--" in line or "my_package" in line:
            continue
        plan = plan_run(parse_words([*words, f"out-dir={tmp_path}"]), None)
        check_data(plan.settings, plan.clients)
        checked += 1
    assert checked >= 3


def _commands() -> str:
    return (ROOT / "README.md").read_text("utf-8") + (ROOT / "Makefile").read_text("utf-8")
