"""The tutorials' boxes: under each heading, the commands and programs in their order."""

import re
import shlex
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
Step = tuple[str, str]  # "" and a command, or "python" and a program


def sections(page: str) -> dict[str, list[Step]]:
    """Of the headings that have boxes; every box is one of the two kinds."""
    text = (DOCS / f"tutorial-{page}.md").read_text("utf-8")
    found: dict[str, list[Step]] = {}
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        for language, block in re.findall(r"^```([^\n]*)\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL):
            assert language in ("", "python"), f"a box of {language!r} that no test follows"
            steps = [block] if language else block.splitlines()
            found.setdefault(title, []).extend((language, step) for step in steps)
    return found


def words_of(command: str) -> list[str]:
    """What follows `fedbayes`."""
    first, *rest = shlex.split(command)
    assert first == "fedbayes", command
    return rest
