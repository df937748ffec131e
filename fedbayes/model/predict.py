"""`fedbayes predict`: a personal model on new examples, with what it does not know, as CSV."""

import csv
import io
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from bayes_core.predict.forecast import Forecast
from bayes_core.predict.metrics import summarise, tally_numbers
from bayes_core.predict.uncertainty import Prediction
from fedbayes.errors import ModelError
from fedbayes.model.inputs import NewExamples
from fedbayes.model.personal import PersonalModel
from server_app.rows import wilson, with_interval

COLUMNS = ("example", "class", "probability", "entropy", "mutual_information")
OF_NUMBERS = (
    "example",
    "mean",
    "sd",
    "low",
    "high",
    "doubt",
)  # low and high: the bounds of the 90 % interval
CONFORMAL_BOUNDS = ("conformal_low", "conformal_high")  # where the run made such


def predict_file(
    personal: PersonalModel, data: str, abstain: float = 0.0, samples: int | None = None, seed: int = 0
) -> tuple[str, str]:
    """The CSV with one row for each example that is answered, and a sentence on what was done."""
    inputs = personal.read(data)
    table, said = _answers(personal, inputs, abstain, samples, seed)
    return table, f"{said}.{' ' if personal.note else ''}{personal.note}"


def _answers(
    personal: PersonalModel, inputs: NewExamples, abstain: float, samples: int | None, seed: int
) -> tuple[str, str]:
    if not personal.classes:
        return _numbers(personal, personal.forecast(inputs.x, samples, seed), inputs, abstain)
    found, many = personal.predict(inputs.x, samples, seed), personal.card.agreement.many
    answered = surest(found.entropy, abstain)
    said = f"{len(answered)} of {len(inputs.x)} examples answered"
    if len(answered) < len(inputs.x):
        said += f", the others have an entropy above {float(found.entropy[answered].max()):.3f}"
    if inputs.y is not None:
        chosen = (found.probabilities > 0.5).long() if many else found.labels
        right = (chosen[answered].cpu() == inputs.y[answered]).double().mean()
        said += f"; accuracy {with_interval(float(right), len(answered))}"
    if many:
        return _labels(inputs, found, personal.classes, answered), said
    sets = personal.sets(inputs.x, samples, seed) if personal.conformal else None
    if sets and inputs.y is not None:
        held = [personal.classes[int(inputs.y[place])] in sets[place] for place in answered.tolist()]
        said += f"; {_share(sum(held) / len(held), len(held))} of the conformal sets hold the class"
    return _table(inputs, found, personal.classes, answered, sets), said


def _numbers(
    personal: PersonalModel, found: Forecast, inputs: NewExamples, abstain: float
) -> tuple[str, str]:
    """Of a regression: those of the smallest standard deviation are answered."""
    answered = surest(found.sd, abstain)
    bounds = personal.interval(found) if personal.conformal else ()
    columns = [
        column[answered].tolist()
        for column in (found.mean, found.sd, *found.interval(), found.doubt, *bounds)
    ]
    said = f"{len(answered)} of {len(inputs.x)} examples answered"
    if len(answered) < len(inputs.x):
        said += f", the others have a standard deviation above {float(found.sd[answered].max()):.4g}"
    if inputs.y is not None:
        chosen = Forecast(found.means[:, answered], found.noises[:, answered])
        figures = summarise(tally_numbers(chosen, inputs.y[answered]))
        said += f"; RMSE {figures['rmse']:.4g}, {_share(figures['coverage'], len(answered))} within their intervals"
        if bounds:
            low, high = (bound[answered].cpu() for bound in bounds)
            y = inputs.y[answered]
            within = ((low <= y) & (y <= high)).double().mean()
            said += f", {_share(float(within), len(answered))} within the conformal ones"
    rows = zip(answered.tolist(), *columns, strict=True)
    return _csv(
        _header(inputs, (*OF_NUMBERS, *(CONFORMAL_BOUNDS if bounds else ()))),
        ((*_named(inputs, place), *(f"{number:.6g}" for number in numbers)) for place, *numbers in rows),
    ), said


def _share(share: float, n: int) -> str:
    """`91.2 % (95 %: 88.0 – 93.7 %)`."""
    low, high = wilson(share, n)
    return f"{100 * share:.1f} % (95 %: {100 * low:.1f} – {100 * high:.1f} %)"


def surest(entropy: Tensor, abstain: float) -> Tensor:
    """The places, ascending, of all but the share `abstain` with the highest entropy (or sd); at least one stays."""
    if not 0 <= abstain < 1:
        raise ModelError(f"--abstain takes a share from 0 up to, but not, 1, not {abstain:g}.")
    kept = max(1, len(entropy) - int(abstain * len(entropy) + 1e-9))
    return torch.sort(entropy, stable=True).indices[:kept].sort().values


def _table(
    inputs: NewExamples,
    found: Prediction,
    classes: tuple[str, ...],
    answered: Tensor,
    sets: Sequence[Sequence[str]] | None = None,
) -> str:
    columns = (found.labels, found.confidence, found.entropy, found.mutual_information)
    rows = zip(answered.tolist(), *(column[answered].tolist() for column in columns), strict=True)
    return _csv(
        _header(inputs, (*COLUMNS, *(f"p({name})" for name in classes), *(("set",) if sets else ()))),
        (
            (
                *_named(inputs, place),
                classes[label],
                *(f"{number:.6f}" for number in (*numbers, *found.probabilities[place].tolist())),
                *(("+".join(sets[place]),) if sets else ()),
            )
            for place, label, *numbers in rows
        ),
    )


def _labels(inputs: NewExamples, found: Prediction, classes: tuple[str, ...], answered: Tensor) -> str:
    """Of several labels an example: those that are likelier there than not, and the probability of each."""
    columns = ("example", "labels", "entropy", "mutual_information", *(f"p({name})" for name in classes))
    rows = []
    for place in answered.tolist():
        p = found.probabilities[place].tolist()
        chosen = "+".join(name for name, value in zip(classes, p, strict=True) if value > 0.5)
        numbers = (float(found.entropy[place]), float(found.mutual_information[place]), *p)
        rows.append((*_named(inputs, place), chosen, *(f"{number:.6f}" for number in numbers)))
    return _csv(_header(inputs, columns), rows)


def _header(inputs: NewExamples, columns: Sequence[str]) -> list[str]:
    """What is passed through stands behind the first column; a name that is taken gets a word behind it."""
    given = (f"{name} (given)" if name in columns else name for name in inputs.aside)
    return [columns[0], *given, *columns[1:]]


def _named(inputs: NewExamples, place: int) -> list[str]:
    """What the user calls an example, and the columns that are passed through: ids, say."""
    return [inputs.names[place], *(cells[place] for cells in inputs.aside.values())]


def _csv(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
