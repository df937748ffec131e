"""Figures of single classes: who was taken for whom; sensitivity, specificity and AUROC of each."""

from collections.abc import Sequence

from markupsafe import Markup

from fedbayes.protocol.columns import MODELS
from server_app.report.figure import Figure, Table, as_share, interval
from server_app.report.files import ByClass, Run
from server_app.report.svg import drawing, element, fitting, hint, label, room, short
from server_app.rows import NONE

SHADES = 9
MOST = 30  # classes in a picture
NUMBERED = 12  # with numbers in its cells
NAME = 12  # characters of a class's name


def classes(run: Run, model: str) -> Figure | None:
    """The confusion matrix of one model in the last round that tells it."""
    found = _told(run, model)
    if found is None:
        return None
    names, matrix, told = found
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
    return Figure(f"classes-{model}", title, _picture(names, matrix, title, alt), caption)


def by_class(run: Run) -> Table:
    """Sensitivity, specificity, precision and AUROC of every class, for each model; no rows where none is told."""
    header = ["class", "model", "test examples", "sensitivity (95 % interval)", "specificity (95 % interval)"]
    header += ["precision (95 % interval)", "AUROC"]
    found = {model: one for model in MODELS if (one := _told(run, model))}
    several = [_lines(model, *one) for model, one in found.items()]
    return Table(header, [line for lines in zip(*several, strict=True) for line in lines])


def _told(run: Run, model: str) -> tuple[list[str], list[Sequence[float]], ByClass] | None:
    """The names of the classes, the confusion matrix, and all that was told in the last round that tells it."""
    told = next((one.classes[model] for one in reversed(run.evaluations) if model in one.classes), None)
    names = [str(name) for name in run.config.get("classes") or []]
    if told is None or not 2 <= len(names) <= MOST or len(told.confusion) != len(names) ** 2:
        return None
    return names, [told.confusion[i * len(names) : (i + 1) * len(names)] for i in range(len(names))], told


def _picture(names: Sequence[str], matrix: Sequence[Sequence[float]], title: str, alt: str) -> Markup:
    left = 10 + room(names, NAME, 12)
    cell = (400 - left - 4) / len(names)
    size = f"font-size:{min(12.0, cell * 0.8):.1f}px"
    body = [
        label(
            fitting(name, cell, min(12.0, cell * 0.8)),
            left + (column + 0.48) * cell,
            15,
            text_anchor="middle",
            style=size,
        )
        for column, name in enumerate(names)
    ]
    for row, (name, counts) in enumerate(zip(names, matrix, strict=True)):
        y, total = 22 + row * cell, sum(counts) or 1
        body.append(label(short(name, NAME), left - 5, y + cell / 2 + 4, text_anchor="end", style=size))
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


def _lines(
    model: str, names: Sequence[str], matrix: Sequence[Sequence[float]], told: ByClass
) -> list[list[str]]:
    total, lines = sum(map(sum, matrix)), []
    for i, name in enumerate(names):
        true, said, hit = sum(matrix[i]), sum(row[i] for row in matrix), matrix[i][i]
        others = total - true
        lines.append([
            name, MODELS[model], f"{true:g}",
            _share(hit, true), _share(others - (said - hit), others), _share(hit, said),
            _number(auroc(*told.scores_of(i, len(names)))),
        ])  # fmt: skip
    return lines


def auroc(negative: Sequence[float], positive: Sequence[float]) -> float | None:
    """P(a true example's probability is higher) + ½·P(in the same bin), from binned counts."""
    below, area = 0.0, 0.0
    for false, true in zip(negative, positive, strict=True):
        area += true * (below + false / 2)
        below += false
    pairs = sum(negative) * sum(positive)
    return area / pairs if pairs else None


def _share(hits: float, n: float) -> str:
    """Of n examples, with its interval."""
    return f"{as_share(hits / n)} ({interval(hits / n, int(n))})" if n else NONE


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"
