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
