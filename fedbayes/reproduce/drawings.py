"""Figures 2 and 3 as drawings."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedbayes.reproduce.cells import ENTROPY
from fedbayes.reproduce.results import Result, shown
from fedbayes.reproduce.sheets import TITLES
from server_app.report.certainty import histograms
from server_app.report.compared import style
from server_app.report.figure import Figure, Table
from server_app.report.files import Counts, Evaluation, Run, Weights
from server_app.report.svg import Plot, Scale, percent


def drawings(results: Sequence[Result]) -> list[Figure]:
    """Figure 2, and figure 3 for each size that has been run."""
    found = [_histograms(one) for one in results if one.cell.keeps == ENTROPY]
    curves = [one for one in results if not one.cell.keeps]
    for size in dict.fromkeys(one.cell.size for one in curves):
        found.append(_convergence([one for one in curves if one.cell.size == size]))
    return [one for one in found if one is not None]


def _histograms(one: Result) -> Figure | None:
    """As a report draws them, from what the ledger has kept."""
    if not one.entries:
        return None
    evaluations = [
        Evaluation(round=int(at), sites={site: Counts(pm_entropy=counts) for site, counts in sites.items()})
        for at, sites in one.entries[0].entropy.items()
    ]
    run = Run(Path(), {"settings": {}}, [], [], evaluations, None, Weights())
    drawn = histograms(run) if evaluations else None
    title = f"Figure 2: {TITLES[one.cell.data]} {one.cell.size}, pFedBayes"
    return drawn and replace(drawn, title=title)


def _convergence(results: Sequence[Result]) -> Figure | None:
    """The personal models' accuracy over rounds, mean over seeds; the paper's last figures as numbers."""
    lines = {place: points for place, one in enumerate(results) if (points := _curve(one))}
    if not lines:
        return None
    first = results[next(iter(lines))].cell
    last = max(points[-1][0] for points in lines.values())
    late = [value for points in lines.values() for at, value in points if at >= min(10, last)]
    plot = Plot(
        Scale(0, last or 1, "round"),
        Scale.around(late, "accuracy of the personal models", percent, at_least=0.0, at_most=1.0),
        300,
    )
    for place, points in lines.items():
        inside = [(at, value) for at, value in points if value >= plot.y.low]
        plot.line(inside, style(place))
        plot.dot(points[-1], style(place), 3.2, f"{results[place].cell.method}: {percent(points[-1][1])}")
    title = f"Figure 3: {TITLES[first.data]} {first.size}"
    ends = "; ".join(
        f"{results[place].cell.method} {percent(points[-1][1])}" for place, points in lines.items()
    )
    rows = [
        [
            results[place].cell.method,
            str(results[place].rounds),
            shown(results[place].ours("pm_accuracy")),
            shown(results[place].paper("pm")),
        ]
        for place in lines
    ]
    return Figure(
        f"convergence-{first.size}",
        title,
        plot.svg(title, f"{title}, personal models, at the end: {ends}."),
        "Mean over the seeds. The paper draws its curves without numbers; what it gives after 800 rounds is in the "
        "table below.",
        [(f"line {style(place)}", results[place].cell.method) for place in lines],
        Table(("method", "rounds", "PM, last round", "paper, 800 rounds"), rows),
    )


def _curve(one: Result) -> list[tuple[float, float]]:
    """Round and mean over seeds, in the rounds that all have."""
    each = [dict(entry.curves.get("pm_accuracy", ())) for entry in one.entries]
    common = sorted(set.intersection(*map(set, each))) if each else []
    return [(float(at), sum(line[at] for line in each) / len(each)) for at in common]
