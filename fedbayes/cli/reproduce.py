"""`fedbayes reproduce`: the paper's tables and figures, run, resumed, and laid beside the paper's own."""

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import ROUNDED
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from fedbayes.errors import CommandError
from fedbayes.launch.plan import absolute, parse_seeds

if TYPE_CHECKING:
    from fedbayes.reproduce.ledger import Entry, Ledger
    from fedbayes.reproduce.sheets import Sheet
    from fedbayes.reproduce.work import Job

DATA_DIR, OUT_DIR = "data", "runs/reproduce"
STOPPED, FAILED = 130, 1


def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="table1, table2, table3, settings or figures.")],
    only: Annotated[
        str,
        typer.Option(
            metavar="PARTS",
            help="Such as mnist/small/pfedme; parts in any order, several with commas between.",
        ),
    ] = "",
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="Those that the paper does not have, too.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(metavar="N", help="200 for the DNN and 150 for the VGG unless given.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="1,2,3", help="1 unless given.")] = None,
    data_dir: Annotated[str, typer.Option(metavar="DIR", help="Where the data sets are.")] = DATA_DIR,
    out_dir: Annotated[
        str, typer.Option(metavar="DIR", help="For the runs and what is made of them.")
    ] = OUT_DIR,
    ledger: Annotated[
        str, typer.Option(metavar="FILE", help="What is finished; OUT-DIR/ledger.json unless given.")
    ] = "",
    jobs: Annotated[int, typer.Option(metavar="N", help="Runs at once.")] = 1,
    show: Annotated[
        bool, typer.Option("--show", help="Only make the tables from the ledger; run nothing.")
    ] = False,
) -> None:
    """Make the paper's tables and figures again, and lay them beside the paper's own.

    Repeated, the command goes on where it was stopped; what is finished is not run again. For example: fedbayes
    reproduce table1 --only mnist/small --rounds 100
    """
    from fedbayes.launch.simulate import say, shown
    from fedbayes.reproduce.cells import chosen
    from fedbayes.reproduce.ledger import Ledger
    from fedbayes.reproduce.output import Output
    from fedbayes.reproduce.work import Job, Work

    if rounds is not None and rounds < 1:
        raise CommandError(f"--rounds takes a whole number of at least 1, not {rounds}.")
    if jobs < 1:
        raise CommandError(f"--jobs takes a whole number of at least 1, not {jobs}.")
    picked = chosen(what, only, all_methods)
    numbers = parse_seeds(seeds) if seeds is not None else [1]
    folder = absolute(out_dir)
    book = Ledger(absolute(ledger) if ledger else folder / "ledger.json")
    console = Console()
    console = console if console.is_terminal else Console(width=160)
    finished = True
    if not show:
        todo = [Job.of(cell, seed, rounds) for seed in numbers for cell in picked]
        with Watch(console, todo, book, jobs) as watch:
            work = Work(todo, book, absolute(data_dir), folder, _runner(), watch, jobs)
            finished = work.run()
    output = Output.of(what, None if not only else picked, book, rounds, numbers if seeds else None, show)
    for sheet in output.sheets:
        console.print(terminal_table(sheet))
    for line in output.claim_lines():
        say(console, line)
    for file in output.write(folder):
        say(console, f"Written:     {shown(file)}")
    if not finished:
        given = {"--only": only, "--rounds": rounds, "--seeds": seeds, "--ledger": ledger, "--jobs": jobs}
        given |= {"--data-dir": data_dir, "--out-dir": out_dir}
        usual = (None, "", 1, DATA_DIR, OUT_DIR)
        words = [word for key, value in given.items() if value not in usual for word in (key, str(value))]
        words += ["--all-methods"] if all_methods else []
        say(console, f"Go on with:  {shlex.join(['fedbayes', 'reproduce', what, *words])}")
        raise typer.Exit(STOPPED)
    if not show and watch.failed:
        for title, why in watch.failed.items():
            say(console, f"Failed:      {title}: {why}")
        raise typer.Exit(FAILED)


def _runner() -> Any:
    from fedbayes.reproduce.child import Children

    return Children()


def terminal_table(sheet: "Sheet") -> Table:
    table = Table(title=sheet.title, title_justify="left", title_style="bold", box=ROUNDED)
    for place, title in enumerate(sheet.header):
        table.add_column(title, justify="left" if place < len(sheet.columns) else "right")
    for row in sheet.rows:
        table.add_row(*map(Text, row))
    return table


class Watch:
    """How far all cells are: a bar on a terminal, a line for each run that has ended anywhere else.

    The bar has no thread of its own, so that runs may be copies of this process.
    """

    def __init__(self, console: Console, jobs: "Sequence[Job]", ledger: "Ledger", at_once: int) -> None:
        self._console, self._ledger, self._at_once = console, ledger, at_once
        self._left = {
            job: None for job in jobs if (one := ledger.find(job.settings)) is None or one.state != "finished"
        }
        self._total, self._began = len(jobs), time.monotonic()
        self._doing: dict[Job, str] = {}
        self.failed: dict[str, str] = {}
        self._bar = Progress(
            TextColumn("[bold]{task.completed:g}/{task.total:g}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=self._total)

    def __enter__(self) -> "Watch":
        kept = self._total - len(self._left)
        text = f"{self._total} runs" + (f", {kept} of them finished before" if kept else "")
        self._say(f"{text}{self._left_in_words()}.")
        self._bar.start()
        self._refresh()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begun(self, job: "Job") -> None:
        self._doing[job] = "starting…"
        self._refresh()

    def event(self, job: "Job", event: Mapping[str, Any]) -> None:
        if event["event"] == "round":
            self._doing[job] = f"round {event['round']}/{event['rounds']}"
            self._refresh()

    def ended(self, job: "Job", entry: "Entry") -> None:
        self._doing.pop(job, None)
        self._left.pop(job, None)
        if entry.state == "failed":
            self.failed[job.title] = entry.why
        self._say(
            f"{self._total - len(self._left)}/{self._total}  {job.title}: {_told(entry)}{self._left_in_words()}"
        )
        self._refresh()

    def _refresh(self) -> None:
        doing = "; ".join(f"{job.title}: {how}" for job, how in self._doing.items())
        done = self._total - len(self._left)
        self._bar.update(
            self._task, completed=done, description=f"{doing}{self._left_in_words()}", refresh=True
        )

    def _left_in_words(self) -> str:
        from fedbayes.reproduce.work import seconds_left
        from server_app.rows import duration

        left = seconds_left(list(self._left), self._ledger.entries, self._at_once) if self._left else None
        return f"; about {duration(left)} left" if left else ""

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _told(entry: "Entry") -> str:
    if entry.state != "finished":
        return f"{entry.state}{f' ({entry.why})' if entry.why else ''}"
    figures = [
        f"{model.upper()} {100 * entry.figures[f'{model}_accuracy']:.2f}"
        for model in ("pm", "gm")
        if f"{model}_accuracy" in entry.figures
    ]
    return f"{', '.join(figures)} in {entry.seconds:.0f} s"
