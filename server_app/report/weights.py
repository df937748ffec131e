"""Figures of the distributions over weights: σ, and for sparse models λ and the non-zero ratio per layer."""

import math

from bayes_core.predict.histograms import LAMBDA_BINS, sigma_edge
from fedbayes.protocol.columns import MODELS
from server_app.report.figure import Figure, Table
from server_app.report.files import Numbers, Run, Weights
from server_app.report.svg import (
    Plot,
    Scale,
    drawing,
    element,
    grouped,
    hint,
    label,
    nice_ticks,
    percent,
    plain,
)

BARS = 48
TAIL = 0.001  # of the weights at either end are left outside the picture


def sources(run: Run) -> dict[str, Weights]:
    """Counts of the personal models (as the sites told) and of the global one (from the checkpoint)."""
    told = [one.weights for one in run.evaluations if one.weights.sigma]
    return {"pm": told[-1] if told else Weights(), "gm": run.weights}


def sigma(run: Run) -> Figure | None:
    """How uncertain the weights are, against where all of them started."""
    found = {model: some.sigma for model, some in sources(run).items() if some.sigma and sum(some.sigma)}
    if not found:
        return None
    first = min(_reach(counts)[0] for counts in found.values())
    final = max(_reach(counts)[1] for counts in found.values())
    step = max(1, math.ceil((final - first) / BARS))
    places = range(first, final + 1, step)
    edges = [sigma_edge(place) for place in (*places, places[-1] + step)]
    shares = {
        model: [sum(counts[place : place + step]) / sum(counts) for place in places]
        for model, counts in found.items()
    }
    most = max(max(values) for values in shares.values())
    start = math.log1p(math.exp(float(run.settings.get("rho-init", -2.5))))
    ticks = nice_ticks(edges[0], edges[-1], 4) if edges[-1] < 5 * edges[0] else _decades(edges[0], edges[-1])
    plot = Plot(
        Scale(edges[0], edges[-1], "σ of a weight", plain, log=True, ticks=ticks),
        Scale(0, most * 1.05, "weights", percent),
    )
    for model, values in shares.items():
        plot.steps(edges, values, model)
    if edges[0] < start < edges[-1]:
        plot.upright(start, "ideal line")
    title = "Uncertainty of the weights (σ)"
    middles = {model: sigma_edge(_quantile(counts, 0.5)) for model, counts in found.items()}
    words = ", ".join(f"{MODELS[model]} median {middle:.3g}" for model, middle in middles.items())
    alt = f"Histogram of σ: {words}; all started at {start:.3g}."
    caption = (
        f"Weights by their standard deviation; dashed: where all of them started ({start:.3g}). "
        f"Bins of equal width in log σ; {percent(TAIL)} of the weights at either end are outside."
    )
    legend = [(f"line {model}", f"{MODELS[model]}, median {middle:.3g}") for model, middle in middles.items()]
    return Figure("sigma", title, plot.svg(title, alt), caption, legend)


def inclusion(run: Run) -> Figure | None:
    """Sparse runs: how sure it is that a weight is on."""
    found = {
        model: some.lambda_ for model, some in sources(run).items() if some.lambda_ and sum(some.lambda_)
    }
    if not found:
        return None
    shares = {model: [n / sum(counts) for n in counts] for model, counts in found.items()}
    most = max(max(values) for values in shares.values())
    plot = Plot(
        Scale(0, 1, "λ, the probability that a weight is on"), Scale(0, most * 1.05, "weights", percent)
    )
    edges = [place / LAMBDA_BINS for place in range(LAMBDA_BINS + 1)]
    for model, values in shares.items():
        plot.steps(edges, values, model)
    title = "Inclusion of the weights (λ)"
    off = {model: sum(values[: LAMBDA_BINS // 2]) for model, values in shares.items()}
    alt = "Histogram of λ: " + "; ".join(
        f"{percent(share)} of the {MODELS[model]} weights are more likely off than on"
        for model, share in off.items()
    )
    legend = [(f"line {model}", f"{MODELS[model]}, {percent(share)} below ½") for model, share in off.items()]
    caption = "Weights by the probability λ with which they take part; those near 0 can be dropped."
    return Figure("inclusion", title, plot.svg(title, f"{alt}."), caption, legend)


def layers(run: Run) -> Figure | None:
    """Sparse runs: the share of weights that are on, layer by layer."""
    names = list(run.layers)
    found = {
        model: some.nonzero
        for model, some in sources(run).items()
        if some.nonzero and len(some.nonzero) == len(names)
    }
    if not found:
        return None
    row, left, right = 20.0 + 12 * len(found), 96.0, 52.0
    body = []
    for place, name in enumerate(names):
        y = 8 + place * row
        body += [
            label(name if len(name) <= 15 else "…" + name[-14:], 0, y + 13),
            label(grouped(run.layers[name]), 0, y + 28, class_="small"),
        ]
        for number, (model, ratios) in enumerate(found.items()):
            top, long = y + 3 + 13 * number, ratios[place] * (400 - left - right)
            words = f"{name}: {MODELS[model]} {percent(ratios[place])}"
            body += [
                element(
                    "rect",
                    hint(words),
                    x=left,
                    y=top,
                    width=max(long, 0.5),
                    height=10.0,
                    class_=f"bar {model}",
                ),
                label(percent(ratios[place]), left + long + 5, top + 9, class_="small"),
            ]
    title = "Non-zero weights of each layer"
    table = [
        [name, *(percent(ratios[place]) for ratios in found.values())] for place, name in enumerate(names)
    ]
    alt = "Share of weights that are on, by layer: " + "; ".join(
        f"{line[0]} "
        + ", ".join(f"{MODELS[model]} {cell}" for model, cell in zip(found, line[1:], strict=True))
        for line in table
    )
    caption = "The mean of λ over the weights of each layer; below its name, how many weights it has."
    return Figure(
        "layers",
        title,
        drawing(8 + row * len(names), body, title, f"{alt}."),
        caption,
        [(f"bar {model}", MODELS[model]) for model in found],
        Table(["layer", *(MODELS[model] for model in found)], table),
    )


def _quantile(counts: Numbers, share: float) -> int:
    """The bin in which this share of the weights is reached."""
    wanted, so_far = share * sum(counts), 0.0
    for place, n in enumerate(counts):
        so_far += n
        if so_far >= wanted and so_far > 0:
            return place
    return len(counts) - 1


def _reach(counts: Numbers) -> tuple[int, int]:
    low, high = _quantile(counts, TAIL), _quantile(counts, 1 - TAIL)
    return max(low - 2, 0), min(high + 2, len(counts) - 1)


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [
        mark for power in powers for step in (1, 3) if low <= (mark := round(step * 10.0**power, 12)) <= high
    ]
