"""Figures of cFedBayes: the KL matrix ordered by cluster, its eigenvalues, the memberships over rounds."""

from server_app.report.figure import CLUSTER_COLOURS, Figure, Table, cluster_style, evenly, natural
from server_app.report.files import Clusters, Run
from server_app.report.svg import Plot, Scale, drawing, element, hint, label, plain, room, short
from server_app.rows import number

SHADES = 9  # of the heat map
MOST_SITES = 120  # in one picture; more are thinned out evenly
MOST_NAMED = 40
NAME = 10  # characters of a site's name


def heat_map(run: Run) -> Figure | None:
    """Ψ, dark where clients are alike; clusters are blocks along the diagonal."""
    found = run.clusters
    if found is None or len(found.sites) < 2:
        return None
    order = _ordered(found)
    n, near, far = len(order), *_range(found)
    place = {site: i for i, site in enumerate(found.sites)}
    named = n <= MOST_NAMED
    margin = (6 + room(order, NAME, 12)) if named else 4.0
    strip = 7.0
    left = margin + strip + 2
    cell = (400 - left - 4) / n
    gap = 0.06 * cell if n <= 60 else 0.0
    cells: list[list[str]] = [[] for _ in range(SHADES)]
    body = []
    for row, site in enumerate(order):
        y = left + row * cell
        for column, other in enumerate(order):
            value = found.psi[place[site]][place[other]] if row != column else near  # nobody is more alike
            likeness = 1 - (value - near) / ((far - near) or 1.0)
            shade = min(SHADES - 1, max(0, int(likeness * SHADES)))
            side = cell - gap
            cells[shade].append(f"M{left + column * cell:.1f} {y:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z")
        style = f"fill {cluster_style(found.labels[place[site]])}"
        tip = hint(f"site {site}: cluster {found.labels[place[site]]}")
        body += [
            element("rect", tip, x=margin, y=y, width=strip, height=cell - gap, class_=style),
            element("rect", tip, x=left + row * cell, y=margin, width=cell - gap, height=strip, class_=style),
        ]
        if named:
            size = f"font-size:{min(12.0, cell * 0.9):.1f}px"
            body.append(
                label(short(site, NAME), margin - 4, y + cell / 2 + 3.5, text_anchor="end", style=size)
            )
    body += [element("path", d="".join(paths), class_=f"fill h{i}") for i, paths in enumerate(cells) if paths]
    title = "How alike are the clients?"
    within, between = _means(found)
    words = (
        f"The mean divergence is {within} within clusters and {between} between them"
        if found.k > 1
        else f"The mean divergence is {within}"
    )
    alt = f"Heat map of the symmetric KL divergence between {n} clients, ordered by cluster. {words}."
    thin = "" if n == len(found.sites) else f" {n} of {len(found.sites)} clients are shown."
    caption = (
        f"Symmetric KL divergence between the clients' distributions after round 0, ordered by cluster (the "
        f"coloured strips). Strong colour: alike ({plain(round(near, 1))}); pale: far apart "
        f"({plain(round(far, 1))}). {words}.{thin}{_how_sure(found)}"
    )
    legend = [(f"fill {cluster_style(k)}", f"cluster {k}") for k in range(min(found.k, CLUSTER_COLOURS))]
    return Figure("kl", title, drawing(400, body, title, alt), caption, legend)


def eigenvalues(run: Run) -> Figure | None:
    """Of the normalised Laplacian: the gap after the number of clusters is wide where the number is clear."""
    found = run.clusters
    if found is None or len(found.eigenvalues) < 2:
        return None
    values = [max(value, 0.0) for value in found.eigenvalues][: 2 * MOST_NAMED]
    title = "Eigenvalues"
    plot = Plot(
        Scale(0.5, len(values) + 0.5, "number", ticks=_whole(len(values))),
        Scale(0, max(values) * 1.08, "eigenvalue"),
    )
    k = found.suggested
    if 1 < k < len(values):
        low, high = plot.py(values[k - 1]), plot.py(values[k])
        right = plot.px(len(values) + 0.5)
        plot.add(
            "rect", x=plot.left, y=high, width=right - plot.left, height=max(low - high, 1.0), class_="gap"
        )
    for place, value in enumerate(values):
        style = "pm" if place < k else "plain"
        plot.dot((place + 1, value), style, 3.5, f"eigenvalue {place + 1}: {value:.4f}")
    chosen = f"{found.k} clusters were asked for" if found.asked else "the number of clusters was left open"
    told = (
        f"The gap above eigenvalue {k} ({found.gap:.3f}, shaded) beside the others (median {found.rest:.3f}) goes "
        f"with {k} clusters"
        if k > 1
        else f"One kind of client: the largest gap but the first is {found.gap:.3f}, the median of the rest "
        f"{found.rest:.3f}"
    )
    alt = f"Eigenvalues of the normalised Laplacian, from 0 to {max(values):.2f}. {told}."
    caption = (
        f"Of the normalised Laplacian. {told}; {chosen}. The first gap is always large and says nothing."
    )
    table = [[str(place + 1), f"{value:.4f}"] for place, value in enumerate(values)]
    return Figure(
        "eigenvalues", title, plot.svg(title, alt), caption, table=Table(("number", "eigenvalue"), table)
    )


def memberships(run: Run) -> Figure | None:
    """Which cluster each client chose in each round."""
    chosen: dict[str, dict[int, int]] = {}
    for row in run.clients:
        cluster = number(row, "cluster")
        if cluster is not None:
            chosen.setdefault(row["site"], {})[int(row["round"])] = int(cluster)
    if not chosen:
        return None
    final = max(max(rounds) for rounds in chosen.values())
    spans = {site: _spans(rounds, final) for site, rounds in chosen.items()}
    now = {site: several[-1][2] for site, several in spans.items()}
    sites = evenly(sorted(chosen, key=lambda site: (now[site], natural(site))), MOST_SITES)
    named = len(sites) <= MOST_NAMED
    left = (8 + room(sites, NAME)) if named else 8.0
    tall = 16.0 if named else max(2.0, 480 / len(sites))
    wide = (400 - left - 6) / (final + 1)
    body = []
    for line, site in enumerate(sites):
        y = 4 + line * tall
        if named:
            body.append(label(short(site, NAME), left - 5, y + tall - 4, text_anchor="end"))
        for since, until, cluster in spans[site]:
            body.append(
                element(
                    "rect", hint(f"site {site}, rounds {since} to {until - 1}: cluster {cluster}"),
                    x=left + since * wide, y=y, width=(until - since) * wide, height=tall - (3 if named else 0),
                    class_=f"fill {cluster_style(cluster)}",
                )
            )  # fmt: skip
    floor = 4 + len(sites) * tall
    for mark, anchor in ((0, "start"), (final, "end")):
        x = left + (mark + (mark == final)) * wide
        body.append(label(str(mark), x, floor + 14, text_anchor=anchor))
    body.append(label("round", (left + 394) / 2, floor + 14, text_anchor="middle", class_="name"))
    title = "Memberships over rounds"
    changes = sum(len(several) - 1 for several in spans.values())
    kinds = sorted({cluster for rounds in chosen.values() for cluster in rounds.values()})
    words = (
        "No client changed its cluster" if not changes else f"Clients changed their cluster {changes} times"
    )
    alt = f"The cluster of each of {len(chosen)} clients in rounds 0 to {final}. {words}."
    caption = (
        f"The cluster that each client chose in each round. {words}; between its turns a client keeps it."
    )
    legend = [(f"fill {cluster_style(k)}", f"cluster {k}") for k in kinds[:CLUSTER_COLOURS]]
    table = [[site, str(now[site]), str(len(spans[site]) - 1)] for site in sorted(chosen, key=natural)]
    return Figure(
        "memberships",
        title,
        drawing(floor + 20, body, title, alt),
        caption,
        legend,
        Table(("site", "cluster now", "changes"), table),
    )


def _how_sure(found: Clusters) -> str:
    """In words; nothing for a run that did not keep it."""
    if found.sure is None:
        return ""
    said = f"{found.suggested} cluster{'s' * (found.suggested > 1)}"
    chosen = f"{said} would be chosen" if found.asked else f"{said} chosen"
    return f" {chosen}, {'and that is clear' if found.sure else 'but that is not sure'}. {found.why}"


def _spans(rounds: dict[int, int], final: int) -> list[tuple[int, int, int]]:
    """From, until (not included), cluster: neighbours of one cluster joined."""
    spans: list[tuple[int, int, int]] = []
    for at in sorted(rounds):
        if spans and spans[-1][2] == rounds[at]:
            continue
        if spans:
            spans[-1] = (spans[-1][0], at, spans[-1][2])
        spans.append((at, final + 1, rounds[at]))
    return spans


def _ordered(found: Clusters) -> list[str]:
    label_of = dict(zip(found.sites, found.labels, strict=True))
    return evenly(sorted(found.sites, key=lambda site: (label_of[site], natural(site))), MOST_SITES)


def _range(found: Clusters) -> tuple[float, float]:
    """The least divergence, and the 95 % point: one absurd client must not blur the picture."""
    values = sorted(value for i, row in enumerate(found.psi) for j, value in enumerate(row) if i != j)
    return values[0], values[min(len(values) - 1, int(0.95 * len(values)))]


def _means(found: Clusters) -> tuple[str, str]:
    kinds: dict[bool, list[float]] = {True: [], False: []}
    for i, row in enumerate(found.psi):
        for j, value in enumerate(row):
            if i != j:
                kinds[found.labels[i] == found.labels[j]].append(value)
    within, between = (
        f"{sum(values) / len(values):.0f}" if values else "–" for values in (kinds[True], kinds[False])
    )
    return within, between


def _whole(count: int) -> list[float]:
    step = max(1, round(count / 8))
    return [float(i) for i in range(1, count + 1, step)]
