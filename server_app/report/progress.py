"""Figures over rounds: convergence (the paper's figure 3), time, bytes, failed replies."""

from fedbayes.protocol.columns import MODELS, Column
from server_app.report.figure import Figure, Table, bounds_of, headline, on_axis, shown
from server_app.report.files import Run
from server_app.report.svg import Plot, Scale, plain
from server_app.rows import number, series


def convergence(run: Run) -> Figure | None:
    """Personal and global accuracy (or RMSE) in every evaluated round."""
    title, metric = "Convergence", headline(run)
    found = {model: points for model in MODELS if (points := series(run.rows, f"{model}_{metric.key}"))}
    if not found:
        return None
    values = [value for points in found.values() for _, value in points]
    rounds = [at for points in found.values() for at, _ in points]
    height = Scale.around(values, metric.title, on_axis(metric), **bounds_of(metric))
    plot = Plot(Scale(0, max(*rounds, 1), "round"), height)
    for model, points in found.items():
        plot.line(points, model)
    for model, points in found.items():
        for at, value in points:
            plot.dot((at, value), model, 2.6, f"round {at}: {MODELS[model]} {shown(metric, value)}")
    ends = {model: shown(metric, points[-1][1]) for model, points in found.items()}
    alt = f"{title} on all clients' test data. " + " ".join(
        f"The {MODELS[model]} model goes from {shown(metric, points[0][1])} in round {points[0][0]} "
        f"to {ends[model]} in round {points[-1][0]}."
        for model, points in found.items()
    )
    by_round = {model: dict(points) for model, points in found.items()}
    table = [
        [str(at), *(shown(metric, by_round[model].get(at)) for model in found)] for at in sorted(set(rounds))
    ]
    lower = " Lower is better." if metric.better == "lower" else ""
    return Figure(
        "convergence",
        title,
        plot.svg(title, alt),
        f"{metric.heading} over rounds, pooled over all clients' test examples.{lower}",
        [(f"line {model}", f"{MODELS[model]}, now {ends[model]}") for model in found],
        Table(["round", *(MODELS[model] for model in found)], table),
    )


def seconds(run: Run) -> Figure | None:
    """How long each round took."""
    points = series(run.rows, "seconds")
    if not points:
        return None
    middle = sorted(value for _, value in points)[len(points) // 2]
    title = "Time per round"
    plot = Plot(
        Scale(0, points[-1][0] or 1, "round"),
        Scale.around([0, *(value for _, value in points)], "seconds", at_least=0),
    )
    plot.line(points, "plain")
    alt = f"Seconds per round: {plain(round(middle, 2))} in the middle, {_extent(points)}."
    caption = (
        f"From sending the distributions to the last reply; the median is {plain(round(middle, 2))} s. "
        "Rounds in which the models are measured take longer."
    )
    return Figure("seconds", title, plot.svg(title, alt), caption)


def traffic(run: Run) -> Figure | None:
    """Bytes of the distributions, to and from the clients."""
    found = {way: points for way in ("up", "down") if (points := series(run.rows, f"bytes_{way}"))}
    values = [value / 1e6 for points in found.values() for _, value in points]
    if not values:
        return None
    title = "Bytes per round"
    final = max(points[-1][0] for points in found.values())
    plot = Plot(Scale(0, final or 1, "round"), Scale.around([0, *values], "megabytes", at_least=0))
    totals = {}
    for way, points in found.items():
        plot.line([(at, value / 1e6) for at, value in points], f"traffic-{way}")
        totals[way] = sum(value for _, value in points)
    words = " and ".join(f"{size(total)} {way}" for way, total in totals.items())
    alt = f"Megabytes per round, up to {plain(round(max(values), 2))}; {words} altogether."
    legend = [
        (f"line traffic-{way}", {"up": "up, from clients", "down": "down, to clients"}[way]) for way in found
    ]
    caption = f"Arrays of distributions, all clients together: {words} over the whole run."
    return Figure("traffic", title, plot.svg(title, alt), caption, legend)


def failures(run: Run) -> Figure | None:
    """Failed replies in each round; no figure where there was none."""
    points = series(run.rows, "clients_failed")
    if not any(value for _, value in points):
        return None
    title = "Failed replies per round"
    most = max(value for _, value in points)
    plot = Plot(
        Scale(0, points[-1][0] or 1, "round"),
        Scale(0, most, "replies", ticks=sorted({0, round(most / 2), int(most)})),
    )
    for at, value in points:
        if value:
            x = plot.px(at)
            plot.add("line", x1=x, x2=x, y1=plot.py(0), y2=plot.py(value), class_="stem bad")
            plot.dot((at, value), "bad", 3, f"round {at}: {value:g} failed")
    total = int(sum(value for _, value in points))
    alt = f"{total} replies failed in {sum(bool(value) for _, value in points)} of {len(points)} rounds."
    return Figure("failed", title, plot.svg(title, alt), alt)


def own(run: Run, column: Column) -> Figure | None:
    """One of the method's own columns over rounds."""
    points = series(run.rows, column.name)
    if not points:
        return None
    plot = Plot(
        Scale(0, points[-1][0] or 1, "round"), Scale.around([value for _, value in points], column.title)
    )
    plot.line(points, "plain")
    (first, before), (at, now) = points[0], points[-1]
    words = f"{column.title}: {plain(before)} in round {first}, {plain(now)} in round {at}."
    table = Table(["round", column.title], [[str(at), plain(value)] for at, value in points])
    # The prefix keeps its id apart from those of the other figures.
    return Figure(f"own-{column.name}", column.title, plot.svg(column.title, words), words, table=table)


def total(run: Run, column: str) -> float:
    return sum(number(row, column) or 0 for row in run.rows)


def size(count: float) -> str:
    """`12.7 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{plain(round(count, 1))} {unit}"


def _extent(points: list[tuple[int, float]]) -> str:
    values = [value for _, value in points]
    return f"between {plain(round(min(values), 2))} and {plain(round(max(values), 2))}"
