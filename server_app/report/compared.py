"""Figures of several groups of runs in one drawing: one colour per group, the mean with a band of one sd."""

import statistics
from collections.abc import Callable, Sequence

from fedbayes.protocol.columns import MODELS, Metric
from server_app.report.certainty import draw_reliability, entropies, reliability_plot
from server_app.report.clients import latest
from server_app.report.figure import Figure, headline, on_axis
from server_app.report.files import Tally
from server_app.report.groups import Group
from server_app.report.svg import Plot, Scale, drawing, element, hint, label, percent, plain
from server_app.rows import number, series

COLOURS = 10
Points = list[tuple[float, float]]


def style(place: int) -> str:
    return f"g{place % COLOURS}"


def convergence(groups: Sequence[Group], model: str) -> Figure | None:
    """One model's accuracy over rounds."""
    metric = headline(groups[0].runs[0])
    lines = {
        place: _band([series(run.rows, f"{model}_{metric.key}") for run in one.runs])
        for place, one in enumerate(groups)
    }
    title = f"{MODELS[model].capitalize()} {metric.title}"
    return _over_rounds(f"convergence-{model}", title, groups, lines, on_axis(metric), metric.title)


def uncertainty(groups: Sequence[Group]) -> Figure | None:
    """The mean entropy of the predictions over rounds: personal where a group has personal models."""
    lines = {
        place: _band([entropies(run.rows, run)[1] for run in one.runs]) for place, one in enumerate(groups)
    }
    return _over_rounds("uncertainty", "Uncertainty of predictions", groups, lines, percent, "entropy")


def _over_rounds(
    key: str,
    title: str,
    groups: Sequence[Group],
    lines: dict[int, list[tuple[float, float, float]]],
    form: Callable[[float], str],
    axis: str,
) -> Figure | None:
    found = {place: points for place, points in lines.items() if points}
    if not found:
        return None
    reach = [value for points in found.values() for _, mean, sd in points for value in (mean - sd, mean + sd)]
    final = max(points[-1][0] for points in found.values())
    bounds = {"at_least": 0.0} | ({"at_most": 1.0} if form is percent else {})
    plot = Plot(Scale(0, final or 1, "round"), Scale.around(reach, axis, form, **bounds))
    for place, points in found.items():
        lower = [(at, mean - sd) for at, mean, sd in points]
        plot.area(lower, [(at, mean + sd) for at, mean, sd in points], style(place))
    for place, points in found.items():
        plot.line([(at, mean) for at, mean, _ in points], style(place))
        at, mean, _ = points[-1]
        plot.dot((at, mean), style(place), 3.2, f"{groups[place].title}: {form(mean)} in round {at:g}")
    ends = "; ".join(f"{groups[place].title} {form(points[-1][1])}" for place, points in found.items())
    legend = [(f"line {style(place)}", groups[place].title) for place in found]
    caption = "Mean over the seeds of a group; the band is ± one sd where there are several."
    alt = f"{title} over rounds, at the end: {ends}."
    return Figure(key, title, plot.svg(title, alt), caption, legend)


def reliability(groups: Sequence[Group], model: str) -> Figure | None:
    """Accuracy against confidence, all seeds of a group together."""
    totals = {}
    for place, one in enumerate(groups):
        told = [run.evaluations[-1] for run in one.runs if run.evaluations]
        tallies: list[Tally] = [tally for evaluation in told if (tally := getattr(evaluation, model))]
        if tallies:
            totals[place] = Tally.together(tallies)
    if not totals:
        return None
    title, plot = f"Reliability, {MODELS[model]}", reliability_plot()
    gaps = []
    for place, tally in totals.items():
        draw_reliability(plot, tally, style(place), groups[place].title)
        gaps.append(f"{groups[place].title} {percent(tally.error)}")
    alt = f"Reliability diagram of the {MODELS[model]} models. Calibration errors: {'; '.join(gaps)}."
    caption = f"All seeds of a group together. Calibration error: {'; '.join(gaps)}."
    legend = [(f"line {style(place)}", groups[place].title) for place in totals]
    return Figure(f"reliability-{model}", title, plot.svg(title, alt), caption, legend)


def clients(groups: Sequence[Group]) -> Figure | None:
    """Every client of every run: its personal model where it has one, else the global one."""
    metric = headline(groups[0].runs[0])
    scores = {place: _scores(one, metric) for place, one in enumerate(groups)}
    values = [value for some in scores.values() for _, value in some]
    if not values:
        return None
    form = on_axis(metric)
    height = 46.0 * len(groups) + 44
    plot = Plot(
        Scale.around(values, metric.title, form), Scale(len(groups), 0, ticks=[]), height, left=10, top=4
    )
    told = []
    for place, some in scores.items():
        y = plot.py(place + 0.72)
        plot.add("line", x1=plot.left, x2=400 - plot.right, y1=y, y2=y, class_="grid")
        plot.body.append(label(_short(groups[place].title), 10, plot.py(place + 0.35), class_="name"))
        for name, value in some:
            plot.dot((value, place + 0.72), style(place), 4, f"{name}: {form(value)}")
        if some:
            mean = statistics.fmean(value for _, value in some)
            x = plot.px(mean)
            plot.add("line", x1=x, x2=x, y1=y - 10, y2=y + 10, class_=f"stem {style(place)}")
            told.append(f"{groups[place].title} mean {form(mean)}")
    title = "Every client"
    alt = f"{metric.heading} of every client: {'; '.join(told)}."
    caption = "One dot per client and run, the line is their mean. Personal models where there are any."
    return Figure("clients", title, plot.svg(title, alt), caption)


def bars(groups: Sequence[Group], column: str, title: str, unit: str) -> Figure | None:
    """One figure of every group as a bar."""
    found = {
        place: present
        for place, one in enumerate(groups)
        if (present := [value for value in one.figures(column) if value is not None])
    }
    if not found:
        return None
    most = max(statistics.fmean(some) for some in found.values()) or 1.0
    body = []
    for row, (place, some) in enumerate(found.items()):
        mean, y = statistics.fmean(some), 8 + 44 * row
        told = groups[place].shown(column)
        words = hint(f"{groups[place].title}: {told} {unit}")
        body += [
            label(_short(groups[place].title), 0, y + 10, class_="name"),
            element(
                "rect",
                words,
                x=0,
                y=y + 16,
                width=290 * mean / most,
                height=14.0,
                class_=f"fill {style(place)}",
            ),
            label(told, 290 * mean / most + 6, y + 28),
        ]
    alt = f"{title}, {unit}: " + "; ".join(
        f"{groups[place].title} {plain(round(statistics.fmean(some), 3))}" for place, some in found.items()
    )
    caption = f"{unit[0].upper()}{unit[1:]}; mean over the seeds of a group."
    picture = drawing(8 + 44 * len(found), body, title, f"{alt}.")
    return Figure(column, title, picture, caption)


def _band(runs: Sequence[Sequence[tuple[int, float]]]) -> list[tuple[float, float, float]]:
    """Round, mean and sd in the rounds that every run has."""
    present = [dict(points) for points in runs if points]
    if not present:
        return []
    common = sorted(set.intersection(*(set(points) for points in present)))
    found = []
    for at in common:
        values = [points[at] for points in present]
        found.append(
            (float(at), statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)
        )
    return found


def _scores(one: Group, metric: Metric) -> list[tuple[str, float]]:
    found = []
    for run in one.runs:
        for site, row in latest(run).items():
            values = [number(row, f"{model}_{metric.key}") for model in MODELS]
            value = next((value for value in values if value is not None), None)
            if value is not None:
                found.append((f"{run.name}, site {site}", value))
    return found


def _short(title: str) -> str:
    return title if len(title) <= 52 else title[:51] + "…"
