"""The figure of single clients: accuracy, cluster, labels."""

from markupsafe import Markup

from fedbayes.protocol.columns import MODELS, Metric
from server_app.report.figure import (
    Figure,
    bounds_of,
    cluster_style,
    headline,
    natural,
    on_axis,
    shown,
)
from server_app.report.files import Counts, Run
from server_app.report.svg import Plot, Scale, element, hint, label, room, short
from server_app.rows import Row, evaluated, number, wilson

MOST_ROWS = 40
NAME = 12  # characters of a site's name


def latest(run: Run) -> dict[str, Row]:
    """Each site's last measured row, sites in the order of their names."""
    rows = {row["site"]: row for row in evaluated(run.clients) if row.get("site")}
    return {site: rows[site] for site in sorted(rows, key=natural)}


def composition(run: Run) -> dict[str, Counts]:
    """What each site told last of its labels and group."""
    return {site: told for one in run.evaluations for site, told in one.sites.items()}


def cluster_of(run: Run) -> dict[str, int]:
    """Each site's latest cluster."""
    return {row["site"]: int(value) for row in run.clients if (value := number(row, "cluster")) is not None}


def clients(run: Run) -> Figure | None:
    """Personal beside global for every client."""
    rows, metric = latest(run), headline(run)
    found = {site: scores for site, row in rows.items() if (scores := _scores(row, metric))}
    if not found:
        return None
    models = [model for model in MODELS if any(model in scores for scores in found.values())]
    draw = _rows if len(found) <= MOST_ROWS else _ranks
    title = "Every client"
    parts = []
    for model in models:
        values = sorted(scores[model] for scores in found.values() if model in scores)
        parts.append(
            f"{MODELS[model]} from {shown(metric, values[0])} to {shown(metric, values[-1])}, "
            f"median {shown(metric, values[len(values) // 2])}"
        )
    alt = f"{metric.heading} of each of {len(found)} clients: {'; '.join(parts)}."
    svg, extra = draw(run, found, metric, title, alt)
    caption = f"{metric.heading} on each client's own test data. {extra}".strip()
    return Figure(
        "clients",
        title,
        svg,
        caption,
        [(f"dot {model}", MODELS[model]) for model in models],
    )


def _scores(row: Row, metric: Metric) -> dict[str, float]:
    return {model: value for model in MODELS if (value := number(row, f"{model}_{metric.key}")) is not None}


def _rows(
    run: Run, found: dict[str, dict[str, float]], metric: Metric, title: str, alt: str
) -> tuple[Markup, str]:
    """A row per client: name, cluster, labels, and the two models on one axis."""
    told, clusters = composition(run), cluster_of(run)
    classes = max((len(one.labels or ()) for one in told.values()), default=0)
    order = sorted(found, key=lambda site: (clusters.get(site, -1), natural(site)))
    name = 10 + room(found, NAME)
    chip = 16.0 if clusters else 0.0
    cells = min(150.0, 13.0 * classes) + 8 if classes else 0.0
    values = [value for each in found.values() for value in each.values()]
    spreads = _spreads(run, found, metric)
    values += [end for each in spreads.values() for spread in each.values() for end in spread]
    height = 18.0 * len(order) + 44
    plot = Plot(
        Scale.around(values, metric.title, on_axis(metric), **bounds_of(metric)),
        Scale(len(order), 0, ticks=[]),
        height,
        left=name + chip + cells + 4,
        top=4,
    )
    most = max((max(one.labels) for one in told.values() if one.labels), default=1) or 1
    for row, site in enumerate(order):
        y = plot.py(row + 0.5)
        plot.add("line", x1=plot.left, x2=400 - plot.right, y1=y, y2=y, class_="grid")
        plot.body.append(label(short(site, NAME), name - 6, y + 4, text_anchor="end"))
        if site in clusters:
            tip = hint(f"site {site}: cluster {clusters[site]}")
            style = f"fill {cluster_style(clusters[site])}"
            plot.add("rect", tip, x=name, y=y - 5, width=10.0, height=10.0, rx=2.0, class_=style)
        for place, count in enumerate((told[site].labels or []) if site in told else []):
            step = (cells - 8) / classes
            strength = f"fill-opacity:{0.15 + 0.45 * count / most:.2f}" if count else "fill-opacity:0.05"
            plot.body.append(
                element(
                    "rect", hint(f"site {site}: {count} of class {class_name(run, place)}"),
                    x=name + chip + place * step, y=y - 6, width=step * 0.88, height=12.0, class_="fill ink",
                    style=strength,
                )
            )  # fmt: skip
        ends = [(found[site][model], row + 0.5) for model in MODELS if model in found[site]]
        if len(ends) == 2:
            plot.line(ends, "link")
        for model, down in zip(reversed(MODELS), (0.68, 0.32), strict=True):
            if model in found[site]:
                words = f"site {site}: {MODELS[model]} {shown(metric, found[site][model])}"
                if model in spreads.get(site, {}):
                    low, high = spreads[site][model]
                    plot.line([(low, row + down), (high, row + down)], f"{model} thin")
                    words += f", 95 % from {shown(metric, low)} to {shown(metric, high)}"
                plot.dot((found[site][model], row + 0.5), model, 4.2, words)
    extra = ["Bars are 95 % intervals."] if spreads else []
    if clusters:
        extra.append("The square is the client's cluster.")
    if classes:
        named = f"{class_name(run, 0)} … {class_name(run, classes - 1)}"
        extra.append(f"The cells are its training examples of classes {named}, darker for more.")
    return plot.svg(title, alt), " ".join(extra)


def _spreads(
    run: Run, found: dict[str, dict[str, float]], metric: Metric
) -> dict[str, dict[str, tuple[float, float]]]:
    """The 95 % intervals of shares of each site's test examples."""
    sizes = {site: int(number(row, "n_test") or 0) for site, row in latest(run).items()}
    return {
        site: {model: wilson(value, sizes[site]) for model, value in scores.items()}
        for site, scores in found.items()
        if metric.share and sizes[site]
    }


def _ranks(
    run: Run, found: dict[str, dict[str, float]], metric: Metric, title: str, alt: str
) -> tuple[Markup, str]:
    """Many clients: sorted values of each model."""
    values = [value for each in found.values() for value in each.values()]
    height = Scale.around(values, metric.title, on_axis(metric), at_least=0)
    plot = Plot(Scale(1, len(found), "clients, sorted"), height)
    for model in MODELS:
        some = sorted((each[model], site) for site, each in found.items() if model in each)
        for place, (value, site) in enumerate(some):
            plot.dot((place + 1, value), model, 2, f"site {site}: {MODELS[model]} {shown(metric, value)}")
    return plot.svg(title, alt), "Sorted, each model for itself; the table of sites names them."


def class_name(run: Run, place: int) -> str:
    """As the sites have agreed."""
    classes = run.config.get("classes") or []
    return str(classes[place]) if place < len(classes) else str(place)
