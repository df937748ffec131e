"""`fedbayes compare`: runs side by side, seeds as mean ± sd, as a page, as Markdown and as CSV."""

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path

from fedbayes.protocol.columns import MODELS
from fedbayes.protocol.files import replace_file
from server_app.report import compared
from server_app.report.figure import Table, headline
from server_app.report.files import read_run
from server_app.report.groups import Group, columns, group, interval, is_interval, remarks
from server_app.report.page import page
from server_app.report.words import rounds_done
from server_app.rows import NONE, last


def write_comparison(folders: Sequence[Path], target: Path) -> list[Path]:
    """TARGET.html, TARGET.md and TARGET.csv; RunError where a folder holds no run."""
    groups = group([read_run(folder) for folder in folders])
    target.parent.mkdir(parents=True, exist_ok=True)
    contents = {".html": render(groups, target.name), ".md": markdown(groups), ".csv": sheet(groups)}
    files = []
    for suffix, text in contents.items():
        file = target.with_name(target.name + suffix)
        replace_file(file, text.encode())
        files.append(file)
    return files


def markdown(groups: Sequence[Group]) -> str:
    """One line per group, and what must be known of the runs."""
    titles = columns(groups)
    lines = [f"| | runs | {' | '.join(titles.values())} |", f"|---|---|{'---|' * len(titles)}"]
    for one in groups:
        cells = [one.shown(column) for column in titles]
        lines.append(f"| {one.title} | {len(one.runs)} | {' | '.join(cells)} |")
    notes = [f"- {sentence}" for sentence in remarks(groups)]
    return "\n".join([*lines, "", _about(groups), *([""] if notes else []), *notes]) + "\n"


def sheet(groups: Sequence[Group]) -> str:
    """One row per group: its settings, its runs, and mean and sd of every figure in full."""
    titles = columns(groups)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    keys = list(groups[0].values)
    heads = [
        f"{column}_{kind}"
        for column in titles
        for kind in (("low", "high") if is_interval(column) else ("mean", "sd"))
    ]
    writer.writerow(["group", *keys, "runs", "seeds", "names", *heads])
    for one in groups:
        seeds = " ".join(str(run.settings.get("seed")) for run in one.runs)
        names = " ".join(run.name for run in one.runs)
        cells: list[object] = [one.title, *(one.values[key] for key in keys), len(one.runs), seeds, names]
        for column in titles:
            if is_interval(column):
                cells += interval(one, column) or ("", "")
                continue
            present = [value for value in one.figures(column) if value is not None]
            complete = len(present) == len(one.runs)
            cells.append(statistics.fmean(present) if complete else "")
            cells.append(statistics.stdev(present) if complete and len(present) > 1 else "")
        writer.writerow(cells)
    return stream.getvalue()


def render(groups: Sequence[Group], title: str) -> str:
    titles = columns(groups)
    lines = [[one.title, str(len(one.runs)), *(one.shown(column) for column in titles)] for one in groups]
    compared_table = Table(["", "runs", *titles.values()], lines)
    if len(groups) < len(titles):  # a line for each figure: many columns go beyond the page
        rows = zip(["runs", *titles.values()], *(line[1:] for line in lines), strict=True)
        compared_table = Table(["", *(one.title for one in groups)], [list(row) for row in rows])
    runs = [
        [
            run.name,
            one.title,
            str(run.settings.get("seed")),
            f"{rounds_done(run)}",
            str(run.config.get("state")),
            *(_score(last(run.rows, f"{model}_{headline(run).key}")) for model in MODELS),
        ]
        for one in groups
        for run in one.runs
    ]
    return page(
        "comparison",
        title=title,
        words=[_about(groups), *_best(groups)],
        compared=compared_table,
        runs=Table(["run", "group", "seed", "rounds", "state", "PM", "GM"], runs),
        figures={
            "convergence": [
                *(compared.convergence(groups, model) for model in MODELS),
                compared.clients(groups),
            ],
            "certainty": [
                *(compared.reliability(groups, model) for model in MODELS),
                compared.uncertainty(groups),
            ],
            "cost": [
                compared.bars(groups, "seconds", "Time per round", "seconds"),
                compared.bars(groups, "megabytes", "Bytes per round", "megabytes, up and down"),
            ],
        },
        remarks=remarks(groups),
    )


def _about(groups: Sequence[Group]) -> str:
    count = sum(len(one.runs) for one in groups)
    keys = list(groups[0].values)
    if not keys:
        return (
            f"{count} runs that differ only in their seeds; mean ± sample sd over them, last measured round."
        )
    listed = ", ".join(keys)
    several = any(len(one.runs) > 1 for one in groups)
    spread = "mean ± sample sd over the seeds of a group, " if several else ""
    return (
        f"{count} runs in {len(groups)} groups that differ in {listed}; {spread}last measured round, all clients' "
        "test examples together."
    )


def _best(groups: Sequence[Group]) -> list[str]:
    """Which group is ahead, and whether by more than its spread."""
    said = []
    metric = headline(groups[0].runs[0])
    best, sign = ("highest", -1) if metric.better == "higher" else ("lowest", 1)
    for model, name in MODELS.items():
        column = f"{model}_{metric.key}"
        scores = [
            (statistics.fmean(present), one)
            for one in groups
            if (present := [value for value in one.figures(column) if value is not None])
            and len(present) == len(one.runs)
        ]
        if len(scores) > 1:
            scores.sort(key=lambda pair: sign * pair[0])
            equal = [one.title for score, one in scores if score == scores[0][0]]
            (_, first), (_, second) = scores[:2]
            what = f"The {best} {name} {metric.title}"
            if len(equal) > 1:
                said.append(f"{what}: {' and '.join(equal)}, all with {first.shown(column)}.")
            else:
                said.append(
                    f"{what}: {first.title} with {first.shown(column)}, before {second.title} with "
                    f"{second.shown(column)}."
                )
    return said


def _score(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"
