"""Figures of certainty: the reliability diagram, and each client's uncertainty over training (figure 2)."""

from collections.abc import Sequence

from fedbayes.protocol.columns import MODELS
from server_app.report.figure import Figure, Table, evenly, natural
from server_app.report.files import Evaluation, Numbers, Run, Tally
from server_app.report.svg import Plot, Scale, drawing, element, fitting, hint, label, percent
from server_app.rows import Row, series

CLIENTS_SHOWN = 5  # as many as in the paper's figure
MILESTONES = (0, 1, 10)  # the paper's epochs; the last round is added


def reliability(run: Run) -> Figure | None:
    """Accuracy against confidence, and how often each confidence occurs."""
    measured = [one for one in run.evaluations if one.pm or one.gm]
    if not measured:
        return None
    final = measured[-1]
    tallies: dict[str, Tally] = {model: tally for model in MODELS if (tally := getattr(final, model))}
    title, plot = "Reliability", reliability_plot()
    empty = Scale(0, 1, ticks=[])
    counts = Plot(empty, empty, 362, left=plot.left, top=316, bottom=6, grid=False)
    most = max(n / tally.n for tally in tallies.values() for n in tally.bin_n)
    rows = []
    for model, tally in tallies.items():
        rows += [[MODELS[model], *line] for line in draw_reliability(plot, tally, model, MODELS[model])]
        bins = len(tally.bin_n)
        heights = [n / tally.n / most for n in tally.bin_n]
        counts.steps([i / bins for i in range(bins + 1)], heights, model)
    counts.body.append(label("examples", 0, 312, class_="name"))
    verdicts = {model: verdict(tally) for model, tally in tallies.items()}
    alt = f"Reliability diagram after round {final.round}. " + " ".join(
        f"The {MODELS[model]} model is {words}." for model, words in verdicts.items()
    )
    picture = drawing(362, plot.body + counts.body, title, alt)
    caption = (
        f"After round {final.round}, all clients' test examples together. On the dashed line a model is right "
        "as often as it says; below it, it is too sure. Larger dots, and the strip below: more examples."
    )
    legend = [(f"line {model}", f"{MODELS[model]}: {words}") for model, words in verdicts.items()]
    return Figure("reliability", title, picture, caption, legend, Table(_RELIABILITY, rows))


def intervals(run: Run) -> Figure | None:
    """Of a regression: how many targets lie within the central intervals of every level, and how many should."""
    told = [one for one in run.evaluations if one.pm_ranks or one.gm_ranks]
    if not told:
        return None
    final, marks = told[-1], (0, 0.25, 0.5, 0.75, 1)
    plot = Plot(
        Scale(0, 1, "probability of the interval", percent, ticks=marks),
        Scale(0, 1, "targets within", percent, ticks=marks),
        300,
    )
    plot.line([(0, 0), (1, 1)], "ideal")
    rows, ends = [], {}
    for model in MODELS:
        ranks: Numbers | None = getattr(final, f"{model}_ranks")
        if not ranks:
            continue
        points = within(ranks)
        plot.line([(0, 0), *points, (1, 1)], model)
        for level, share in points:
            plot.dot(
                (level, share),
                model,
                3,
                f"{MODELS[model]}: {percent(share)} in the {percent(level)} interval",
            )
            rows.append([MODELS[model], percent(level), percent(share)])
        ends[model] = f"{percent(points[-1][1])} in the {percent(points[-1][0])} interval"
    title = "Calibration of intervals"
    words = "; ".join(f"{MODELS[model]} model: {end}" for model, end in ends.items())
    caption = (
        f"After round {final.round}, all clients' test examples together. On the dashed line as many targets lie in "
        "an interval as it promises; below it, intervals are too narrow."
    )
    legend = [(f"line {model}", f"{MODELS[model]}: {end}") for model, end in ends.items()]
    table = Table(("model", "interval", "targets within"), rows)
    return Figure("intervals", title, plot.svg(title, f"{title}: {words}."), caption, legend, table)


def within(ranks: Numbers) -> list[tuple[float, float]]:
    """Level, and the share of targets within, of the central intervals that the bins can tell of."""
    bins, n = len(ranks), sum(ranks) or 1.0
    cuts = range(bins // 2 - 1, 0, -1)
    return [((bins - 2 * cut) / bins, sum(ranks[cut : bins - cut]) / n) for cut in cuts]


_RELIABILITY = ("model", "confidence", "accuracy", "examples")


def reliability_plot() -> Plot:
    """An empty diagram with the line on which a model is right as often as it says."""
    marks = (0, 0.25, 0.5, 0.75, 1)
    plot = Plot(
        Scale(0, 1, "confidence", percent, ticks=marks), Scale(0, 1, "accuracy", percent, ticks=marks), 300
    )
    plot.line([(0, 0), (1, 1)], "ideal")
    return plot


def draw_reliability(plot: Plot, tally: Tally, style: str, name: str) -> list[list[str]]:
    """A dot for every bin, larger for more examples, and a line; gives the numbers as rows."""
    bins = zip(tally.bin_n, tally.bin_confidence, tally.bin_correct, strict=True)
    found = [(confidence / n, correct / n, n) for n, confidence, correct in bins if n]
    enough = min(10.0, tally.n / 500)  # a bin with a handful of examples says nothing: a dot, but no line
    plot.line([(x, y) for x, y, n in found if n >= enough], f"{style} thin")
    for x, y, n in found:
        words = f"{name}: {n:g} examples, confidence {percent(x)}, right {percent(y)}"
        plot.dot((x, y), style, 2 + 4 * (n / tally.n) ** 0.5, words)
    return [[percent(x), percent(y), f"{n:g}"] for x, y, n in found]


def verdict(tally: Tally) -> str:
    """How a model's confidence compares with its accuracy, in words."""
    if abs(tally.excess) < 0.005:
        return "as sure as it is right"
    return f"{percent(abs(tally.excess))} too {'sure' if tally.excess > 0 else 'unsure'}"


def entropy(counts: Numbers) -> float:
    """The mean relative entropy of binned counts, each at its bin's centre."""
    return sum((place + 0.5) * n for place, n in enumerate(counts)) / len(counts) / (sum(counts) or 1.0)


def entropies(rows: Sequence[Row], run: Run) -> tuple[str, list[tuple[int, float]]]:
    """The model whose uncertainty is shown (the personal one where there is one), and its relative entropies."""
    for model in MODELS:
        if points := series(rows, f"{model}_entropy"):
            return model, [(at, value / run.uniform) for at, value in points]
    return "", []


def uncertainty(run: Run) -> Figure | None:
    """The mean entropy of each client's predictions over training, and how much of it is the model's own."""
    model, means = entropies(run.rows, run)
    if not means:
        return None
    by_site: dict[str, list[Row]] = {}
    for row in run.clients:
        by_site.setdefault(row["site"], []).append(row)
    lines = {
        site: points
        for site in sorted(by_site, key=natural)
        if (points := [(at, value / run.uniform) for at, value in series(by_site[site], f"{model}_entropy")])
    }
    doubts = [(at, value / run.uniform) for at, value in series(run.rows, f"{model}_mutual_information")]
    shows_doubts = any(value > 0 for _, value in doubts)
    title = "Uncertainty of each client over training"
    top = max(value for points in (means, *lines.values()) for _, value in points)
    plot = Plot(
        Scale(0, means[-1][0] or 1, "round"), Scale(0, min(1.0, top * 1.05) or 1.0, "entropy", percent)
    )
    for site, points in lines.items():
        plot.line(points, f"{model} faint")
        plot.dot(points[-1], f"{model} faint", 2, f"site {site}: {percent(points[-1][1])}")
    plot.line(means, model)
    legend = [(f"line {model} faint", "one client"), (f"line {model}", f"all, now {percent(means[-1][1])}")]
    if shows_doubts:
        plot.line(doubts, "mutual")
        legend.append(("line mutual", f"mutual information, now {percent(doubts[-1][1])}"))
    alt = (
        f"Entropy of the {MODELS[model]} model's predictions, as a share of a uniform guess's: "
        f"{percent(means[0][1])} in round {means[0][0]}, {percent(means[-1][1])} in round {means[-1][0]}, at "
        f"{len(lines)} clients."
    )
    caption = (
        f"Entropy of the {MODELS[model]} model's predictions on the client's own test data; 100 % is a uniform "
        "guess. A client whose line stays high is not sure of its own data."
    ).replace("100 %", percent(1))
    if shows_doubts:
        caption += " Mutual information is the part that more data would settle: how much the draws disagree."
    table = [[site, percent(points[0][1]), percent(points[-1][1])] for site, points in lines.items()]
    return Figure(
        "uncertainty", title, plot.svg(title, alt), caption, legend, Table(("site", "first", "last"), table)
    )


def histograms(run: Run) -> Figure | None:
    """The paper's figure 2: how the predictions' entropy is spread, for five clients at rounds 0, 1, 10."""
    model = next((model for model in MODELS if _told(run, f"{model}_entropy")), None)
    if model is None:
        return None
    key = f"{model}_entropy"
    told = _told(run, key)
    moments = milestones(told)
    final = told[-1].sites
    by_certainty = sorted(
        (site for site in final if getattr(final[site], key)),
        key=lambda site: entropy(getattr(final[site], key)),
    )
    clients = evenly(by_certainty, CLIENTS_SHOWN)
    shares = {
        (one.round, site): [n / sum(counts) for n in counts]
        for one in moments
        for site in clients
        if site in one.sites and (counts := getattr(one.sites[site], key)) and sum(counts)
    }
    most = {
        one.round: max(max(values) for (at, _), values in shares.items() if at == one.round)
        for one in moments
    }
    top, gap, height = 20.0, 8.0, 52.0
    left = 8 + 7.2 * max(len(f"round {one.round}") for one in moments)
    width = (400 - left - 6 - gap * (len(clients) - 1)) / len(clients)
    body = []
    for column, site in enumerate(clients):
        x = left + column * (width + gap)
        name = f"site {site}" if site.isdecimal() and len(site) < 5 else site
        body.append(label(fitting(name, width + gap), x + width / 2, 12, text_anchor="middle"))
        for row, one in enumerate(moments):
            floor = top + row * (height + 12) + height
            body.append(element("line", x1=x, x2=x + width, y1=floor, y2=floor, class_="axis"))
            for place, value in enumerate(shares.get((one.round, site), ())):
                tall, step = height * value / most[one.round], width / 20
                words = f"site {site}, round {one.round}: {percent(value)} of the examples"
                if value:
                    body.append(
                        element(
                            "rect", hint(words), x=x + place * step, y=floor - tall, width=step * 0.86,
                            height=tall, class_=f"bar {model}",
                        )
                    )  # fmt: skip
    for row, one in enumerate(moments):
        body.append(label(f"round {one.round}", 0, top + row * (height + 12) + height - 4))
    bottom = top + len(moments) * (height + 12) + 4
    axis = "each from certain (left) to a uniform guess (right)"
    body.append(label(axis, (left + 394) / 2, bottom + 6, text_anchor="middle", class_="name"))
    title = "How sure are the predictions?"
    rounds = ", ".join(str(one.round) for one in moments)
    alt = (
        f"Histograms of the entropy of the {MODELS[model]} model's predictions for {len(clients)} clients, from "
        f"the surest to the least sure, after rounds {rounds}: "
        + "; ".join(f"round {one.round} mean {percent(_mean(one, key))}" for one in moments)
        + "."
    )
    caption = (
        f"Each histogram: a client's own test examples by the entropy of the {MODELS[model]} model's prediction. "
        "Columns: clients from the surest to the least sure. Every row has its own height."
    )
    return Figure("histograms", title, drawing(bottom + 12, body, title, alt), caption)


def _told(run: Run, key: str) -> list[Evaluation]:
    """The evaluations in which some site gave these counts."""
    return [one for one in run.evaluations if any(getattr(site, key) for site in one.sites.values())]


def _mean(one: Evaluation, key: str) -> float:
    values = [entropy(counts) for site in one.sites.values() if (counts := getattr(site, key))]
    return sum(values) / len(values)


def milestones(told: list[Evaluation]) -> list[Evaluation]:
    """The evaluations nearest to rounds 0, 1 and 10, and the last one."""
    chosen = {told[-1].round: told[-1]}
    for wanted in MILESTONES:
        nearest = min(told, key=lambda one: abs(one.round - wanted))
        chosen[nearest.round] = nearest
    return [chosen[at] for at in sorted(chosen)]
