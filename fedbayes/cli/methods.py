"""`fedbayes methods`: what there is, in a table, at length, or as the Markdown of docs/methods.md."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import ROUNDED
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from fedbayes.errors import CommandError

if TYPE_CHECKING:
    from fedbayes.launch.catalogue import Entry

BEGIN = "<!-- made by `fedbayes methods --markdown --to docs/methods.md`: begin -->"
END = "<!-- made by `fedbayes methods --markdown --to docs/methods.md`: end -->"
NONE = "–"


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One method, at length.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as Markdown.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --markdown: into this page, between its two marks."),
    ] = None,
) -> None:
    """List the methods: what they are, what is sent, and the settings that they have of their own.

    For example: fedbayes methods ifca
    """
    from fedbayes.launch.catalogue import catalogue, entry

    if (markdown and name is not None) or (to is not None and not markdown):
        raise CommandError("`fedbayes methods` takes a NAME, or --markdown, and --to FILE only with that.")
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    if name is not None:
        console.print(in_detail(entry(name)))
    elif to is not None:
        write_between(to, as_markdown(catalogue()))
    elif markdown:
        print(as_markdown(catalogue()))
    else:
        console.print(as_table(catalogue()))


def as_table(entries: "list[Entry]") -> Table:
    table = Table(box=ROUNDED, show_lines=True)
    for title in ("method", "what it is", "models", "receives", "sends", "settings of its own", "and"):
        table.add_column(title, style="bold" if title == "method" else "")
    for one in entries:
        paper = f" ({one.paper})" if one.paper else ""
        settings = ", ".join(f"{setting.key}={plain(setting.default)}" for setting in one.settings)
        cells = (
            one.name, f"{one.title}: {one.idea}{paper}", one.models_in_words, one.receives, one.sends,
            settings or NONE, "; ".join(one.traits) or NONE,
        )  # fmt: skip
        table.add_row(*map(Text, cells))
    table.caption = (
        "receives, sends: numbers for each weight, in a round. `fedbayes methods NAME` tells more."
    )
    return table


def in_detail(one: "Entry") -> Group:
    """One method, with what its two files say of it."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    rows = {
        "method": f"{one.title}: {one.idea}",
        "paper": one.paper,
        "models": one.models_in_words,
        "receives": f"{one.receives} for each weight, in a round",
        "sends": one.sends if one.sends == "nothing" else f"{one.sends} for each weight, in a round",
        "also": "; ".join(one.traits),
        "columns": ", ".join(f"{name} ({title})" for name, title in one.columns),
    }
    for title, words in rows.items():
        if words:
            facts.add_row(title, Text(words))
    settings = Table(box=ROUNDED)
    for title in ("setting", "default", "takes"):
        settings.add_column(title)
    for setting in one.settings:
        settings.add_row(*map(Text, (setting.key, plain(setting.default), setting.takes)))
    notes = [Text(f"\n{words}") for words in one.notes if words]
    return Group(facts, *([settings] if one.settings else ["No settings of its own."]), *notes)


def as_markdown(entries: "list[Entry]") -> str:
    lines = [
        "| method | what it is | models | receives | sends | settings of its own | and |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in entries:
        paper = f" ({one.paper})" if one.paper else ""
        settings = ", ".join(f"`{setting.key}` {plain(setting.default)}" for setting in one.settings)
        cells = (
            f"`{one.name}`", f"{one.title}: {one.idea}{paper}", one.models_in_words, one.receives, one.sends,
            settings or NONE, "; ".join(one.traits) or NONE,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines)


def write_between(page: Path, text: str) -> None:
    """Put it where the page has its two marks; what stands outside of them stays."""
    try:
        before, begin, rest = page.read_text("utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise CommandError(f"{page} has no place for the table, the lines\n{BEGIN}\n{END}")
        page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")
    except OSError as error:
        raise CommandError(f"{page} cannot be used: {error.strerror}.") from None


def plain(value: Any) -> str:
    """A default as a command line has it."""
    if value == "":
        return "(empty)"
    return str(value).lower() if isinstance(value, bool) else str(value)
