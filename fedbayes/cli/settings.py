"""`fedbayes settings`: every setting with its default, what it takes and what it does; and settings from a file."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbayes.cli.methods import plain
from fedbayes.errors import CommandError
from fedbayes.launch.plan import require_settable
from fedbayes.protocol.settings import defaults, flattened

PAGE = "settings.md"


@dataclass(frozen=True)
class Explained:
    """One setting as the page tells it."""

    key: str
    takes: str
    words: str


def settings(
    word: Annotated[str | None, typer.Argument(metavar="[WORD]", help="Those that speak of it.")] = None,
) -> None:
    """List the settings: default, what they take, what they do.

    For example: fedbayes settings noise
    """
    found = [one for one in explained() if word is None or _speaks_of(one, word)]
    if not found:
        raise CommandError(f'No setting speaks of "{word}"; `fedbayes settings` lists them all.')
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    table = Table(box=ROUNDED, show_lines=True)
    for title in ("setting", "default", "takes", "what it does"):
        table.add_column(title, style="bold" if title == "setting" else "", no_wrap=title == "setting")
    for one in found:
        table.add_row(*map(Text, (one.key, plain(defaults()[one.key]), one.takes, one.words)))
    console.print(table)


def _speaks_of(one: Explained, word: str) -> bool:
    return any(word.lower() in text.lower() for text in (one.key, one.takes, one.words))


def explained() -> list[Explained]:
    """Every setting in the order of the page, which is in the wheel too."""
    found: dict[str, Explained] = {}
    for line in page().read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 3 or not cells[0].startswith("`"):
            continue
        for key in re.findall(r"`([^`]+)`", cells[0]):
            if key in defaults():
                found[key] = Explained(key, _text(cells[1]), _text(cells[2]))
    return list(found.values())


def page() -> Path:
    """Inside the package in a wheel, among the documentation in a checkout."""
    here = Path(__file__).resolve().parents[1]
    packed = here / PAGE
    return packed if packed.exists() else here.parent / "docs" / PAGE


def _text(markdown: str) -> str:
    """Without links and marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("\\|", "|")


def from_file(file: Path) -> dict[str, Any]:
    """The settings in a TOML file, a method's own in tables of its name; CommandError says what is wrong with it."""
    try:
        said = flattened(tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise CommandError(f"{file} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise CommandError(f"{file} is no TOML file: {error}.") from None
    for key in said:
        require_settable(key)
    return said
