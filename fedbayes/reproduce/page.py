"""The page: one file that opens offline, in the look of a run's report."""

from typing import TYPE_CHECKING

from fedbayes import __version__
from fedbayes.reproduce.drawings import drawings
from fedbayes.reproduce.sheets import NAMES, TITLES
from server_app.report.figure import Table
from server_app.report.page import page

if TYPE_CHECKING:
    from fedbayes.reproduce.output import Output


def render(output: "Output") -> str:
    done = sum(bool(one.entries) for one in output.results)
    marks = [one.mark for one in output.verdicts]
    decided = [mark for mark in marks if mark != "not run yet"]
    held = sum(mark.startswith("holds") for mark in decided)
    return page(
        "reproduction",
        title=NAMES[output.what],
        version=__version__,
        words=output.words,
        tiles=[
            ("", f"{done} of {len(output.results)}", "cells have been run"),
            ("", f"{held} of {len(decided)}", "of the paper's statements hold, of those that can be judged"),
        ],
        sheets=[(sheet.title, Table(sheet.header, sheet.rows)) for sheet in output.sheets],
        verdicts=[
            (_badge(one.mark), one.mark, one.claim.says, one.counts, ", ".join(one.against), one.in_paper)
            for one in output.verdicts
        ],
        figures=drawings(output.results) if output.what == "figures" else [],
        missing=[
            f"{TITLES[one.cell.data]} {one.cell.size}, {one.cell.method}: {one.state}. {one.why}"
            for one in output.results
            if one.why
        ],
    )


def _badge(mark: str) -> str:
    """The class of its colour."""
    return "finished" if mark.startswith("holds") else "failed" if mark == "does not hold" else ""
