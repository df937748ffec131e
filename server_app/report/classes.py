"""Figures of single classes: who was taken for whom; sensitivity, specificity and AUROC of each."""

from collections.abc import Sequence

from markupsafe import Markup

from fedbayes.protocol.columns import MODELS
from server_app.report.figure import Figure, Table, as_share, interval
from server_app.report.files import ByClass, Run
from server_app.report.svg import drawing, element, hint, label
from server_app.rows import NONE

SHADES = 9
MOST = 30  # classes in a picture
NUMBERED = 12  # with numbers in its cells


def classes(run: Run, model: str) -> Figure | None:
    """The confusion matrix of one model in the last round that tells it, with a table of every class."""
    told = next((one.classes[model] for one in reversed(run.evaluations) if model in one.classes), None)
    names = [str(name) for name in run.config.get("classes") or []]
    if told is None or not 2 <= len(names) <= MOST or len(told.confusion) != len(names) ** 2:
        return None
    matrix = [told.confusion[i * len(names) : (i + 1) * len(names)] for i in range(len(names))]
    title = f"Classes, {MODELS[model]}"
    right, n = sum(matrix[i][i] for i in range(len(names))), sum(map(sum, matrix))
    worst = max(
        ((matrix[i][j], i, j) for i in range(len(names)) for j in range(len(names)) if i != j),
        default=(0, 0, 0),
    )
    pair = f"{names[worst[1]]} for {names[worst[2]]} ({worst[0]:g} times)"
    most = f" Most often taken for another: {pair}." if worst[0] else ""
    alt = f"Confusion matrix of {len(names)} classes: {right:g} of {n:g} test examples are on its diagonal.{most}"
    caption = (
        f"Rows: what it is; columns: what the {MODELS[model]} model says; strong colour: a large share of the row. "
        f"Test examples of the {told.sites} sites that tell their labels.{most}"
    )
    return Figure(
        f"classes-{model}",
        title,
        _picture(names, matrix, title, alt),
        caption,
        table=_table(names, matrix, told),
    )


def _picture(names: Sequence[str], matrix: Sequence[Sequence[float]], title: str, alt: str) -> Markup:
    left = 10 + 6.5 * min(max(map(len, names)), 12)
    cell = (400 - left - 4) / len(names)
    body = []
    for row, (name, counts) in enumerate(zip(names, matrix, strict=True)):
        y, total = 22 + row * cell, sum(counts) or 1
        short = name if len(name) <= 12 else f"{name[:11]}…"
        size = f"font-size:{min(12.0, cell * 0.8):.1f}px"
        body.append(label(short, left - 5, y + cell / 2 + 4, text_anchor="end", style=size))
        for column, count in enumerate(counts):
            shade = min(SHADES - 1, int(count / total * SHADES))
            x = left + column * cell
            tip = hint(f"{name} taken for {names[column]}: {count:g}")
            body.append(
                element("rect", tip, x=x, y=y, width=cell * 0.96, height=cell * 0.96, class_=f"fill h{shade}")
            )
            if len(names) <= NUMBERED and count:
                body.append(
                    label(
                        f"{count:g}",
                        x + cell / 2,
                        y + cell / 2 + 4,
                        text_anchor="middle",
                        style=size,
                        class_=f"on h{shade}",
                    )
                )
    return drawing(26 + cell * len(names), body, title, alt)


def _table(names: Sequence[str], matrix: Sequence[Sequence[float]], told: ByClass) -> Table:
    header = ["class", "test examples", "sensitivity", "95 % interval", "specificity", "precision", "AUROC"]
    total, lines = sum(map(sum, matrix)), []
    for i, name in enumerate(names):
        true, said = sum(matrix[i]), sum(row[i] for row in matrix)
        hit = matrix[i][i]
        others = total - true
        sensitivity = hit / true if true else None
        lines.append([
            name, f"{true:g}", _share(sensitivity), interval(sensitivity, int(true)),
            _share((others - (said - hit)) / others if others else None), _share(hit / said if said else None),
            _number(auroc(*told.scores_of(i, len(names)))),
        ])  # fmt: skip
    return Table(header, lines)


def auroc(negative: Sequence[float], positive: Sequence[float]) -> float | None:
    """P(a true example's probability is higher) + ½·P(in the same bin), from binned counts."""
    below, area = 0.0, 0.0
    for false, true in zip(negative, positive, strict=True):
        area += true * (below + false / 2)
        below += false
    pairs = sum(negative) * sum(positive)
    return area / pairs if pairs else None


def _share(value: float | None) -> str:
    return NONE if value is None else as_share(value)


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"
