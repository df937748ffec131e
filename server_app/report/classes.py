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
OUTCOMES = ("absent, found so", "said there", "missed", "found")  # of a label: true × predicted


def classes(run: Run, model: str) -> Figure | None:
    """The confusion matrix of one model in the last round that tells it."""
    found = _told(run, model)
    if found is None:
        return None
    names, told = found
    if told.many:
        return _labels(names, told, model)
    matrix = _square(told.confusion, len(names))
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


def _labels(names: Sequence[str], told: ByClass, model: str) -> Figure:
    """Of several labels an example: for each how often it was there or not, and said to be."""
    title, left, wide = f"Labels, {MODELS[model]}", 10 + room(names, NAME, 12), 20.0
    cell = (400 - left - 4) / len(OUTCOMES)
    body = [
        label(words, left + (place + 0.48) * cell, 15, text_anchor="middle", style="font-size:12px")
        for place, words in enumerate(OUTCOMES)
    ]
    for row, name in enumerate(names):
        y, counts = 22 + row * wide, told.confusion[4 * row : 4 * row + 4]
        body.append(label(short(name, NAME), left - 5, y + 14, text_anchor="end", style="font-size:12px"))
        for place, count in enumerate(counts):
            of = sum(counts[:2] if place < 2 else counts[2:]) or 1
            shade, x = min(SHADES - 1, int(count / of * SHADES)), left + place * cell
            tip = hint(f"{name}, {OUTCOMES[place]}: {count:g}")
            body.append(
                element("rect", tip, x=x, y=y, width=cell - 2, height=wide - 2, class_=f"fill h{shade}")
            )
            body.append(
                label(f"{count:g}", x + cell / 2, y + 14, text_anchor="middle", style="font-size:12px",
                      class_=f"on h{shade}")
            )  # fmt: skip
    right = sum(count for place, count in enumerate(told.confusion) if place % 4 in (0, 3))
    alt = f"{len(names)} labels: {right:g} of {sum(told.confusion):g} decisions of the {MODELS[model]} model are right."
    caption = (
        f"Of each label, how many test examples have it or not, and what the {MODELS[model]} model says. "
        f"Test examples of the {told.sites} sites that tell their labels."
    )
    picture = drawing(26 + wide * len(names), body, title, alt)
    return Figure(f"classes-{model}", title, picture, caption)


def by_class(run: Run) -> Table:
    """Sensitivity, specificity, precision and AUROC of every class, for each model; no rows where none is told."""
    header = ["class", "model", "test examples", "sensitivity (95 % interval)", "specificity (95 % interval)"]
    header += ["precision (95 % interval)", "AUROC"]
    found = {model: one for model in MODELS if (one := _told(run, model))}
    several = [_lines(model, *one) for model, one in found.items()]
    return Table(header, [line for lines in zip(*several, strict=True) for line in lines])


def _told(run: Run, model: str) -> tuple[list[str], ByClass] | None:
    """The names of the classes, and all that was told of them in the last round that tells it."""
    told = next((one.classes[model] for one in reversed(run.evaluations) if model in one.classes), None)
    names = [str(name) for name in run.config.get("classes") or []]
    if told is None or not 2 <= len(names) <= MOST:
        return None
    wanted = 4 * len(names) if told.many else len(names) ** 2
    return (names, told) if len(told.confusion) == wanted else None


def _square(confusion: Sequence[float], classes: int) -> list[Sequence[float]]:
    return [confusion[i * classes : (i + 1) * classes] for i in range(classes)]


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


def _lines(model: str, names: Sequence[str], told: ByClass) -> list[list[str]]:
    lines, size = [], 2 if told.many else len(names)
    for i, name in enumerate(names):
        matrix = _square(told.confusion[4 * i : 4 * i + 4] if told.many else told.confusion, size)
        at = 1 if told.many else i  # of a label: that it is there
        true, said, hit = sum(matrix[at]), sum(row[at] for row in matrix), matrix[at][at]
        others = sum(map(sum, matrix)) - true
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
