"""`fedbayes tune`: every point of a grid as an ordinary run, judged on validation data, never on test data.

The points are runs in the folder OUT/NAME-tune. What is finished there is not run again, and what was stopped goes on;
a point that fails or diverges is named, and the others go on. All points have the same data, validation examples and
rounds. The objective is the NLL of the validation examples after the last round, of the personal model where a method
has one, else of the global one: of the model that a client would use.
"""

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strategies
from fedbayes.errors import CommandError
from fedbayes.launch.grid import Point, parse_grid, points
from fedbayes.launch.plan import Plan, absolute, number_of_clients, plan_resume, plan_run
from fedbayes.launch.ready import check_data
from fedbayes.protocol.columns import METRICS, MODELS, VALIDATION
from fedbayes.protocol.files import replace_file
from fedbayes.protocol.settings import Settings, defaults
from server_app.rows import OF_VALIDATION, examples_of, number
from server_app.stored import RunError, read_config, read_rows

FORMAT = 1
FRACTION = "0.2"  # held out where the user does not say
FIGURES = tuple(
    f"{model}_{metric.key}" for metric in METRICS if metric.kind == VALIDATION for model in MODELS
)
FINISHED, FAILED, STOPPED = 0, 1, 130
Start = Callable[[Plan], int]  # runs a plan, and returns its exit status


@dataclass(frozen=True)
class Outcome:
    """What became of a point."""

    point: Point
    state: str = "waiting"  # or finished, diverged, failed, stopped
    why: str = ""
    objective: float | None = None
    figures: Mapping[str, float | None] | None = None
    held: int = 0  # validation examples of all clients


@dataclass(frozen=True)
class Tuning:
    """A grid that may be run."""

    folder: Path
    plans: Mapping[Point, Plan]
    fraction: str
    own_fraction: bool  # it is ours: what wins is run on all training data
    words: tuple[str, ...]  # as the user gave them
    clients: int | None  # as the user said

    @classmethod
    def of(cls, words: Mapping[str, str], clients: int | None) -> "Tuning":
        """Everything is checked before anything starts."""
        grid, rest = parse_grid(words)
        fraction = rest.get("validation-fraction")
        if fraction is not None and _is_zero(fraction):
            raise CommandError(
                "`fedbayes tune` judges on validation data and takes a validation-fraction above 0, such as 0.2."
            )
        found = points(grid, rest)
        settings = Settings.parse(defaults() | dict(found[0].words))
        name = settings.run_name or settings.made_name()
        folder = absolute(settings.out_dir) / f"{name}-tune"
        held = {"validation-fraction": fraction or FRACTION}
        plans = {point: _plan(point, folder, held, clients) for point in found}
        given = (*(f"{key}={value}" for key, value in words.items() if key != "run-name"), f"run-name={name}")
        return cls(folder, plans, held["validation-fraction"], fraction is None, given, clients)

    @property
    def command(self) -> str:
        """That goes on with it."""
        return _command("tune", self.words, self.clients)

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(point.method for point in self.plans))

    @property
    def keys(self) -> list[str]:
        """The settings of the grid but for the method."""
        return list(dict.fromkeys(key for point in self.plans for key in point.values))

    def run(self, start: Start) -> Iterator[Outcome]:
        """Each point's outcome, when it has one; after a stop, no further ones."""
        for plan in self.plans.values():
            if not plan.finished:
                check_data(plan.settings, plan.clients)
        for point, plan in self.plans.items():
            status, why = FINISHED, ""
            if not plan.finished:
                try:
                    status = start(plan)
                except (CommandError, RunError) as error:
                    status, why = FAILED, str(error)
            yield judged(point, plan, status, why)
            if status == STOPPED:
                return

    def run_command(self, point: Point) -> str:
        """The run that a point was tried for; on all training data, where nothing else was asked for."""
        ours = ("run-name", *(["validation-fraction"] if self.own_fraction else []))
        words = [f"{key}={value}" for key, value in point.words.items() if key not in ours]
        return _command("run", words, self.clients)


def judged(point: Point, plan: Plan, status: int, why: str = "") -> Outcome:
    """By the validation figures after the last round, of all clients."""
    if status == STOPPED:
        return Outcome(point, "stopped")
    if status != FINISHED:
        config = read_config(plan.folder) or {}
        return Outcome(point, "failed", why or str(config.get("message") or "its log tells why"))
    last = str(plan.settings.rounds)
    row = next((row for row in read_rows(plan.folder / "rounds.csv") if row["round"] == last), {})
    each = [one for one in read_rows(plan.folder / "clients.csv") if one["round"] == last]
    figures = {column: number(row, column) for column in FIGURES}
    objective = objective_of(point.method)
    measured = sum(number(one, objective) is not None for one in each)
    if figures[objective] is None:
        return Outcome(point, "diverged", "no client's validation NLL is a number", figures=figures)
    if measured < plan.clients:  # the others' figures cannot be compared with those of all
        why = f"only {measured} of {plan.clients} clients were measured"
        return Outcome(point, "failed", why, figures=figures)
    sites = (read_config(plan.folder) or {}).get("sites")
    held = examples_of(each, sites)[OF_VALIDATION]
    return Outcome(point, "finished", "", figures[objective], figures, held)


def objective_of(method: str) -> str:
    """The column that is as low as possible."""
    has_own = strategies.load(method).traits.personal_model
    return "pm_val_nll" if has_own else "gm_val_nll"


def best(outcomes: Sequence[Outcome], method: str) -> Outcome | None:
    """Of a method: the first of the lowest objective."""
    mine = [one for one in outcomes if one.point.method == method and one.objective is not None]
    return min(mine, key=lambda one: one.objective or 0.0, default=None)


def write(tuning: Tuning, outcomes: Sequence[Outcome]) -> None:
    """tune.csv and tune.json, as far as there are outcomes."""
    winners = {method: best(outcomes, method) for method in tuning.methods}
    columns = ("run", "method", *tuning.keys, "state", "why", "objective", *FIGURES, "best")
    rows = [
        {
            "run": tuning.plans[one.point].settings.run_name, "method": one.point.method, **one.point.values,
            "state": one.state, "why": one.why, "objective": one.objective, **(one.figures or {}),
            "best": "yes" if one is winners[one.point.method] else "",
        }
        for one in outcomes
    ]  # fmt: skip
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, columns, restval="")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    said: dict[str, Any] = {
        "format": FORMAT,
        "validation_fraction": float(tuning.fraction),
        "points": rows,
        "best": {
            method: {
                "values": dict(one.point.values),
                "objective": objective_of(method),
                "value": one.objective,
                "command": tuning.run_command(one.point),
            }
            for method, one in winners.items()
            if one is not None
        },
    }
    tuning.folder.mkdir(parents=True, exist_ok=True)
    replace_file(tuning.folder / "tune.csv", stream.getvalue().encode())
    replace_file(tuning.folder / "tune.json", json.dumps(said, indent=2).encode())


def _plan(point: Point, folder: Path, held: Mapping[str, str], clients: int | None) -> Plan:
    """A new run, or the one that is there: a tuning's runs must not differ in what was not given."""
    words = {**point.words, **held, "out-dir": str(folder), "run-name": point.name}
    if not (folder / point.name / "config.json").exists():
        return plan_run(words, clients)
    settings = Settings.parse(defaults() | words)
    try:
        return plan_resume(str(folder / point.name), defaults() | words, number_of_clients(settings, clients))
    except (RunError, CommandError) as error:
        raise CommandError(f"{folder} holds other runs already; take another run-name. ({error})") from None


def _command(name: str, words: Sequence[str], clients: int | None) -> str:
    many = [] if clients is None else ["--clients", str(clients)]
    return shlex.join(["fedbayes", name, *words, *many])


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False  # its run refuses it in words of its own
