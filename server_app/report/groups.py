"""Runs that differ in nothing but their seed form a group; groups are named by the settings that differ."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedbayes.protocol.columns import MODELS, TITLES
from fedbayes.protocol.settings import defaults
from server_app.report.files import Run
from server_app.report.progress import total
from server_app.report.words import method_words, rounds_done
from server_app.rows import NONE, SHARES, examples_of, last, mean_and_sd, series, wilson

# Where and how fast a run was made says nothing of what it is.
ASIDE = {
    "seed", "run-name", "out-dir", "data-dir", "resume", "threads", "device", "round-timeout", "straggler-cutoff",
    "wait-timeout",
}  # fmt: skip
DIGITS = {"seconds": 2, "megabytes": 2}
INTERVAL = "_interval"  # columns that end so are 95 % intervals of an accuracy, where a group is one run


@dataclass(frozen=True)
class Group:
    """Runs of the same settings, one for each seed."""

    title: str
    values: dict[str, Any]  # of the settings in which groups differ
    runs: list[Run]

    def figures(self, column: str) -> list[float | None]:
        """The runs' figures in a column of the comparison."""
        return [figure(run, column) for run in self.runs]

    def shown(self, column: str) -> str:
        if is_interval(column):
            found = interval(self, column)
            return "{:.3f}–{:.3f}".format(*found) if found else NONE
        if column == "failed":
            return mean_and_sd(self.figures(column), int(len(self.runs) > 1))
        return mean_and_sd(self.figures(column), DIGITS.get(column, 4))


def is_interval(column: str) -> bool:
    return column.endswith(INTERVAL)


def interval(group: Group, column: str) -> tuple[float, float] | None:
    """After Wilson, of the one run of a group; several runs have their sd."""
    if len(group.runs) > 1:
        return None
    run, of = group.runs[0], column.removesuffix(INTERVAL)
    value = last(run.rows, of)
    n = examples_of(run.clients, run.config.get("sites"))[of.partition("_")[2]]
    return wilson(value, n) if value is not None and n else None


def columns(groups: Sequence[Group]) -> dict[str, str]:
    """What the comparison can tell, with titles: every metric that some run has, time, bytes, failures."""
    titles: dict[str, str] = {}
    for metric, title in TITLES.items():
        titles |= {f"{model}_{metric}": f"{model.upper()} {title}" for model in MODELS}
        if metric in SHARES:
            words = metric if metric in ("accuracy", "coverage") else title
            titles |= {
                f"{model}_{metric}{INTERVAL}": f"{model.upper()} {words}, 95 % interval" for model in MODELS
            }
    titles |= {"adjusted_rand": "adjusted Rand index"}
    titles |= {"seconds": "seconds per round", "megabytes": "MB per round", "failed": "failed replies"}
    return {column: title for column, title in titles.items() if any(_has(group, column) for group in groups)}


def _has(group: Group, column: str) -> bool:
    if is_interval(column):
        return interval(group, column) is not None
    return any(value is not None for value in group.figures(column))


def figure(run: Run, column: str) -> float | None:
    """One run's figure: a metric in its last evaluated round, or a mean over its rounds."""
    if column == "failed":
        return total(run, "clients_failed")
    if column == "seconds":
        times = [value for _, value in series(run.rows, "seconds")]
        return statistics.median(times) if times else None
    if column == "megabytes":
        rounds = len(series(run.rows, "bytes_up"))
        return (total(run, "bytes_up") + total(run, "bytes_down")) / 1e6 / rounds if rounds else None
    if column == "adjusted_rand":
        found = series(run.rows, column)
        return found[-1][1] if found else None
    return last(run.rows, column)


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups in the order in which their first runs were given."""
    usual = defaults()
    settings = [usual | run.settings | {"clients": run.config.get("clients")} for run in runs]
    keys = [
        key
        for key in dict.fromkeys(key for one in settings for key in one)
        if key not in ASIDE and len({repr(one.get(key)) for one in settings}) > 1
    ]
    members: dict[str, list[Run]] = {}
    values: dict[str, dict[str, Any]] = {}
    for run, one in zip(runs, settings, strict=True):
        own = {key: one.get(key) for key in keys}
        members.setdefault(repr(own), []).append(run)
        values[repr(own)] = own
    return [Group(_title(values[key], usual, members[key][0]), values[key], members[key]) for key in members]


def _title(values: dict[str, Any], usual: dict[str, Any], one: Run) -> str:
    """`FedAvg`, `pFedBayes, zeta=2`: the method, and what is not at its default; the CSV has every value."""
    words = [
        method_words(one).title if key == "method" else f"{key}={value}"
        for key, value in values.items()
        if key == "method" or value != usual.get(key)
    ]
    return ", ".join(words) or ("defaults" if values else "all runs")


def remarks(groups: Sequence[Group]) -> list[str]:
    """What a reader must know before believing the table."""
    said = []
    for one in groups:
        for run in one.runs:
            done, state = rounds_done(run), run.config.get("state")
            if state != "finished":
                said.append(f"{run.name} is {state} ({done} of {run.settings.get('rounds')} rounds).")
        seeds = [run.settings.get("seed") for run in one.runs]
        if len(set(seeds)) < len(seeds):
            said.append(f"{one.title}: several runs have the same seed, so the sd says little.")
        said += [f"{run.name}: {sentence}" for run in one.runs for sentence in run.missing]
    return said
