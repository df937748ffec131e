"""Figures for those who decide by a model: what abstaining gains, where intervals hold, which sites can trust it."""

from dataclasses import replace

from markupsafe import Markup

from bayes_core.predict.forecast import LEVEL
from bayes_core.predict.histograms import VALUE_BINS
from fedbayes.protocol.columns import MODELS
from server_app.report.clients import NAME, composition, latest
from server_app.report.figure import Figure, Table, as_share, natural
from server_app.report.files import Numbers, Run
from server_app.report.svg import Plot, Scale, drawing, label, percent, plain, room, short
from server_app.rows import NONE, number, wilson

MOST_ROWS = 40
ENOUGH = 10  # examples in a bin; fewer say nothing
SHARES = (1.0, 0.9, 0.8, 0.7, 0.5)  # of examples that are answered, in the table
Bins = list[tuple[float, float, float, float]]  # centre, share within, mean width, examples
Spread = tuple[float, float, float]  # a figure and its 95 % interval


def curve(answers: Numbers) -> list[tuple[float, float]]:
    """Share of examples that are answered, and how many of these are right: from the surest bin on, to all."""
    half = len(answers) // 2
    total, answered, right, points = sum(answers) or 1.0, 0.0, 0.0, []
    for wrong_here, right_here in zip(answers[half - 1 :: -1], answers[: half - 1 : -1], strict=True):
        if wrong_here + right_here:
            answered, right = answered + wrong_here + right_here, right + right_here
            points.append((answered / total, right / answered))
    return points


def abstention(run: Run) -> Figure | None:
    """Accuracy where the model answers only what it is surest of."""
    told = [one for one in run.evaluations if any(sum(counts) for counts in one.answers.values())]
    if not told:
        return None
    final = told[-1]
    curves = {model: curve(final.answers[model]) for model in MODELS if model in final.answers}
    lowest = min(share for points in curves.values() for _, share in points)
    title = "Accuracy against abstention"
    plot = Plot(
        Scale(0, 1, "share of examples that are answered", percent, ticks=(0, 0.25, 0.5, 0.75, 1)),
        Scale.around([lowest, 1.0], "accuracy", percent, at_least=0.0, at_most=1.0),
    )
    rows: list[list[str]] = []
    for model, points in curves.items():
        plot.line(points, model)
        for answered, right in points:
            words = f"{MODELS[model]}: {percent(answered)} answered, {percent(right)} right"
            plot.dot((answered, right), model, 2, words)
        for share in SHARES:
            answered, right = max((one for one in points if one[0] <= share), default=points[0])
            rows.append([MODELS[model], as_share(answered), as_share(right)])
    words = "; ".join(
        f"{MODELS[model]} model: {percent(points[-1][1])} right of all, {percent(points[0][1])} of the surest "
        f"{percent(points[0][0])}"
        for model, points in curves.items()
    )
    caption = (
        f"After round {final.round}, all clients' test examples together: how many answers are right if those of which "
        "the model is least sure are left to somebody else (fedbayes predict --abstain). Dots: bins of confidence."
    )
    legend = [
        (f"line {model}", f"{MODELS[model]}: {percent(points[-1][1])} of all")
        for model, points in curves.items()
    ]
    table = Table(("model", "answered", "right"), list({tuple(row): row for row in rows}.values()))
    return Figure("abstention", title, plot.svg(title, f"{title}: {words}."), caption, legend, table)


def by_value(run: Run) -> Figure | None:
    """Of a regression: how many targets lie in their 90 % intervals, and how wide these are, by predicted number."""
    told = [one for one in run.evaluations if any(sum(counts) for counts in one.values.values())]
    if not told:
        return None
    final = told[-1]
    found = {model: bins_of(run, final.values[model]) for model in MODELS if model in final.values}
    title, ends, rows = "Intervals by predicted number", {}, []
    for model, bins in found.items():
        for at, share, width, n in bins:
            rows.append([MODELS[model], f"{at:.4g}", f"{n:g}", as_share(share), f"{width:.4g}"])
        worst = min(_told(bins), key=lambda one: one[1])
        ends[model] = f"at least {percent(worst[1])} (about {worst[0]:.3g})"
    alt = f"{title}: " + "; ".join(f"{MODELS[model]} model {words}" for model, words in ends.items()) + "."
    caption = (
        f"After round {final.round}, all clients' test examples together, in steps of half a standard deviation of the "
        f"targets. On the dashed line as many lie within as {percent(LEVEL)} intervals promise. Steps with fewer than "
        f"{ENOUGH} examples are in the table alone."
    )
    legend = [(f"line {model}", f"{MODELS[model]}: {words}") for model, words in ends.items()]
    table = Table(("model", "predicted, about", "examples", "within", "mean width"), rows)
    return Figure("by-value", title, _two_plots(found, title, alt), caption, legend, table)


def bins_of(run: Run, values: Numbers) -> Bins:
    """Every bin that has examples."""
    agreement = run.config.get("agreement") or {}
    mean, deviation = float(agreement.get("target_mean") or 0), float(agreement.get("target_deviation") or 1)
    centres = [mean + deviation * (place + 0.5 - VALUE_BINS / 2) / 2 for place in range(VALUE_BINS)]
    parts = [values[place * VALUE_BINS : (place + 1) * VALUE_BINS] for place in range(3)]
    columns = zip(centres, *parts, strict=True)
    return [(at, within / n, width / n, n) for at, n, within, width in columns if n]


def _told(bins: Bins) -> Bins:
    """Those with enough examples; all where none has."""
    return [one for one in bins if one[3] >= ENOUGH] or bins


def _two_plots(found: dict[str, Bins], title: str, alt: str) -> Markup:
    """Coverage above, width below, over the same axis."""
    every = [one for bins in found.values() for one in _told(bins)]
    across = Scale.around([one[0] for one in every], "predicted number", plain)
    heading = f"targets within {percent(LEVEL)} intervals"
    low = min(0.7, *(one[1] for one in every), 1.0)
    above = Plot(
        replace(across, title="", ticks=[]), Scale(low, 1, heading, percent), 196, left=52, bottom=10
    )
    widest = max(one[2] for one in every)
    below = Plot(across, Scale(0, 1.1 * widest or 1.0), 360, left=52, top=228)
    below.body.append(label("mean width", 0, 218, class_="name"))
    above.line([(across.low, LEVEL), (across.high, LEVEL)], "ideal")
    for model, bins in found.items():
        above.line([(at, share) for at, share, _, _ in _told(bins)], f"{model} thin")
        below.line([(at, width) for at, _, width, _ in _told(bins)], f"{model} thin")
        for at, share, width, n in _told(bins):
            words = (
                f"{MODELS[model]}, about {at:.4g}: {n:g} examples, {percent(share)} within, width {width:.3g}"
            )
            above.dot((at, share), model, 3, words)
            below.dot((at, width), model, 3, words)
    return drawing(360, above.body + below.body, title, alt)


def by_site(run: Run) -> Figure | None:
    """How much surer than right the models are at each site, or how many targets lie in their intervals there."""
    classes = bool(run.config.get("classes"))
    found = at_sites(run, classes)
    if not found:
        return None
    ideal, title = 0.0 if classes else LEVEL, "Calibration at each site"
    models = [model for model in MODELS if any(model in three for three in found.values())]
    off = {
        model: sum(
            not three[model][1] <= ideal <= three[model][2] for three in found.values() if model in three
        )
        for model in models
    }
    words = "; ".join(
        f"{MODELS[m]} model off by more than chance at {off[m]} of {len(found)} sites" for m in models
    )
    means = (
        "Right of the dashed line a model is surer than it is right"
        if classes
        else "Left of the dashed line intervals are too narrow"
    )
    caption = (
        f"{means}, on each site's own test examples; bars are 95 % intervals, wide where a site has few of them. "
        f"{words[:1].upper()}{words[1:]}."
    )
    if len(found) > MOST_ROWS:
        caption += f" The first {MOST_ROWS} are drawn; the table has all."
    plot = _rows(dict(list(found.items())[:MOST_ROWS]), ideal, classes)
    rows = latest(run)
    lines = [
        [site, *(as_share(three[m][0]) if m in three else NONE for m in models), rows[site]["n_test"]]
        for site, three in found.items()
    ]
    table = Table(["site", *(MODELS[model] for model in models), "test examples"], lines)
    legend = [(f"dot {model}", MODELS[model]) for model in models]
    return Figure("by-site", title, plot.svg(title, f"{title}: {words}."), caption, legend, table)


def at_sites(run: Run, classes: bool) -> dict[str, dict[str, Spread]]:
    """For each site and model confidence minus accuracy, or the share within intervals, with its 95 % interval."""
    told = composition(run)
    found: dict[str, dict[str, Spread]] = {}
    for site, row in sorted(latest(run).items(), key=lambda one: natural(one[0])):
        n = int(number(row, "n_test") or 0)
        for model in MODELS:
            share = number(row, f"{model}_{'accuracy' if classes else 'coverage'}")
            excess: float | None = getattr(told.get(site), f"{model}_excess", None)
            if share is None or not n:
                continue
            low, high = wilson(share, n)
            if not classes:
                found.setdefault(site, {})[model] = share, low, high
            elif excess is not None:
                sure = share + excess
                found.setdefault(site, {})[model] = excess, sure - high, sure - low
    return found


def _rows(found: dict[str, dict[str, Spread]], ideal: float, classes: bool) -> Plot:
    """A row for each site: a dot and a bar for each model."""
    values = [end for three in found.values() for spread in three.values() for end in spread]
    words = "confidence minus accuracy" if classes else f"targets within {percent(LEVEL)} intervals"
    left = 10 + room(found, NAME)
    across = Scale.around([*values, ideal], words, percent)
    height = 20.0 * len(found) + 44
    plot = Plot(across, Scale(len(found), 0, ticks=[]), height, left=left + 4, top=4)
    plot.upright(ideal, "line ideal")
    for place, (site, three) in enumerate(found.items()):
        plot.body.append(label(short(site, NAME), left - 6, plot.py(place + 0.5) + 4, text_anchor="end"))
        for model, down in zip(MODELS, (0.32, 0.68), strict=True):
            if model in three:
                value, low, high = three[model]
                plot.line([(low, place + down), (high, place + down)], f"{model} thin")
                tip = f"site {site}: {MODELS[model]} {percent(value)}, 95 % from {percent(low)} to {percent(high)}"
                plot.dot((value, place + down), model, 3.4, tip)
    return plot
