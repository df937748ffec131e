"""The commands that show runs: report and compare."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedbayes.errors import CommandError
from fedbayes.launch.plan import absolute, find_run, parse_words

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN... [out-dir=DIR]", help="Runs by name or folder.", show_default=False),
]
To = Annotated[str, typer.Option(metavar="NAME", help="Where: NAME.html, NAME.md and NAME.csv.")]


def report(runs: Runs = None) -> None:
    """Build a run's report.html (again): one page that opens offline."""
    from server_app.report import write_report

    folders = find_runs("report", runs or ())
    if not folders:
        raise CommandError("`fedbayes report` takes the name or folder of a run; `fedbayes runs` lists them.")
    for folder in folders:
        try:
            print(write_report(folder))
        except OSError as error:
            raise CommandError(f"The report cannot be written: {error}.") from None


def compare(runs: Runs = None, to: To = "comparison") -> None:
    """Runs side by side, seeds as mean ± sd: a page, Markdown and CSV.

    For example: fedbayes compare a-seed1 a-seed2 b-seed1 b-seed2 --to a-and-b
    """
    from server_app.report.compare import write_comparison
    from server_app.report.narrow import narrow

    folders = find_runs("compare", runs or ())
    if len(folders) < 2:
        raise CommandError(f"`fedbayes compare` takes two runs or more, not {len(folders)}.")
    if twice := [folder.name for folder in folders if folders.count(folder) > 1]:
        raise CommandError(f"`fedbayes compare` was given the run {twice[0]} twice.")
    try:
        files = write_comparison(folders, absolute(to))
    except OSError as error:
        raise CommandError(f"The comparison cannot be written: {error}.") from None
    print(narrow(files[1].read_text("utf-8"), shutil.get_terminal_size((120, 40)).columns))
    for file in files:
        print(file)


def find_runs(command: str, words: Sequence[str]) -> list[Path]:
    """The folders of runs named on a command line, which may also say out-dir=…"""
    names = [word for word in words if "=" not in word]
    values = only_out_dir(command, [word for word in words if "=" in word])
    return [find_run(name, values) for name in names]


def only_out_dir(command: str, words: Sequence[str]) -> dict[str, str]:
    """The settings of a command that takes none but out-dir."""
    values = parse_words(words)
    if unknown := [key for key in values if key != "out-dir"]:
        raise CommandError(f'`fedbayes {command}` takes only out-dir=…, not "{unknown[0]}".')
    return values
