"""`fedbayes tune`: a small grid over settings, judged on validation data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedbayes.launch.plan import Plan, parse_words

if TYPE_CHECKING:
    from fedbayes.launch.tune import Outcome, Tuning

NONE = "–"


def tune(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=V1,V2... [KEY=VALUE]...", help="The grid, and settings.", show_default=False
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(metavar="N", help="How many clients are simulated (10 unless given).")
    ] = None,
) -> None:
    """Try every point of a grid, and name the best by validation data (0.2 of the training data unless said).

    Repeated, the command goes on where it was stopped. For example: fedbayes tune method=pfedbayes,fedavg
    lr-global=0.001,0.01 rounds=30
    """
    from fedbayes.launch.simulate import say, shown
    from fedbayes.launch.tune import FAILED, FINISHED, STOPPED, Outcome, Tuning, best, write

    tuning = Tuning.of(parse_words(words or ()), clients)
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    say(console, f"{len(tuning.plans)} points, judged on {tuning.fraction} of the training data.")

    def start(plan: Plan) -> int:
        say(console, f"\n{plan.settings.run_name}")
        return _start(plan, console)

    outcomes: list[Outcome] = []
    for outcome in tuning.run(start):
        outcomes.append(outcome)
        write(tuning, outcomes)
        if outcome.why:
            say(console, f"{outcome.point.in_words}: {outcome.state} ({outcome.why})")
    console.print(points_table(tuning, outcomes))
    winners = {method: best(outcomes, method) for method in tuning.methods}
    if len(winners) > 1:
        budgets = {method: sum(one.point.method == method for one in outcomes) for method in winners}
        console.print(winners_table(winners, budgets))
        if len(set(budgets.values())) > 1:
            say(console, "Not all methods had as many points: one with more has had more chances.")
    for winner in filter(None, winners.values()):
        say(console, f"Best:        {tuning.run_command(winner.point)}")
    say(console, f"Tune folder: {shown(tuning.folder)}")
    if outcomes and outcomes[-1].state == "stopped":
        say(console, f"Go on with:  {tuning.command}")
        raise typer.Exit(STOPPED)
    raise typer.Exit(FINISHED if all(winners.values()) else FAILED)


def _start(plan: Plan, console: Console) -> int:
    """As `fedbayes run` starts a run."""
    from fedbayes.launch.simulate import simulate

    return simulate(plan, console)


def points_table(tuning: "Tuning", outcomes: "Sequence[Outcome]") -> Table:
    """A row for each point that has been run, the best of each method marked."""
    from fedbayes.launch.tune import best, objective_of

    table = Table(title=tuning.folder.name, title_justify="left", title_style="bold", box=ROUNDED)
    several = len(tuning.methods) > 1
    for title in (*(["method"] if several else []), *tuning.keys):
        table.add_column(title)
    for title in ("model", "validation NLL", "validation accuracy"):
        table.add_column(title, justify="right" if title != "model" else "left")
    table.add_column("")
    winners = [best(outcomes, method) for method in tuning.methods]
    for one in outcomes:
        model = objective_of(one.point.method)[:2]
        figures = one.figures or {}
        state = (
            "best"
            if any(one is winner for winner in winners)
            else ""
            if one.state == "finished"
            else one.state
        )
        cells = [
            *([one.point.method] if several else []),
            *(one.point.values.get(key, NONE) for key in tuning.keys),
            model.upper(), _figure(one.objective), _accuracy(figures.get(f"{model}_val_accuracy"), one.held), state,
        ]  # fmt: skip
        table.add_row(*map(Text, cells), style="bold green" if state == "best" else "")
    return table


def winners_table(winners: "dict[str, Outcome | None]", budgets: dict[str, int]) -> Table:
    """The best of each method, and how many points each had: only equal budgets make a fair comparison."""
    table = Table(title="the best of each method", title_justify="left", title_style="bold", box=ROUNDED)
    for title in ("method", "points", "values", "validation NLL"):
        table.add_column(title, justify="right" if title in ("points", "validation NLL") else "left")
    for method, one in winners.items():
        values = "" if one is None else " ".join(f"{key}={value}" for key, value in one.point.values.items())
        objective = NONE if one is None else _figure(one.objective)
        table.add_row(*map(Text, (method, str(budgets[method]), values or NONE, objective)))
    return table


def _accuracy(value: float | None, n: int) -> str:
    """With its interval, where the number of examples is known."""
    from server_app.rows import with_interval

    return with_interval(value, n) if value is not None and n else _figure(value)


def _figure(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"
