"""`fedbayes predict`: a personal model on new examples, with what it does not know, as CSV."""

import csv
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from bayes_core.forecast import Forecast
from bayes_core.metrics import summarise, tally_numbers
from bayes_core.uncertainty import Prediction
from fedbayes.errors import ModelError
from fedbayes.inputs import NewExamples
from fedbayes.personal import Personal

COLUMNS = ("example", "class", "probability", "entropy", "mutual_information")
OF_NUMBERS = ("example", "mean", "sd", "low", "high", "doubt")  # low and high: the bounds of the 90 % interval


def predict_file(
    model: Path, data: str, out: TextIO, abstain: float = 0.0, samples: int | None = None, seed: int = 0
) -> str:
    """Write one row for each example that is answered; returns a sentence on what was done."""
    personal = Personal.load(model)
    inputs = personal.read(data)
    if not personal.classes:
        return _numbers(personal.forecast(inputs.x, samples, seed), inputs, out, abstain)
    found = personal.predict(inputs.x, samples, seed)
    answered = surest(found.entropy, abstain)
    _write(out, inputs, found, personal.classes, answered)
    said = f"{len(answered)} of {len(inputs.x)} examples answered"
    if len(answered) < len(inputs.x):
        said += f", the others have an entropy above {float(found.entropy[answered].max()):.3f}"
    if inputs.y is not None:
        right = (found.labels[answered].cpu() == inputs.y[answered]).double().mean()
        said += f"; accuracy {float(right):.4f}"
    return said + "."


def _numbers(found: Forecast, inputs: NewExamples, out: TextIO, abstain: float) -> str:
    """Of a regression: those of the smallest standard deviation are answered."""
    answered = surest(found.sd, abstain)
    writer = csv.writer(out)
    writer.writerow(OF_NUMBERS)
    columns = (found.mean, found.sd, *found.interval(), found.doubt)
    for place, *numbers in zip(answered.tolist(), *(column[answered].tolist() for column in columns), strict=True):
        writer.writerow((inputs.names[place], *(f"{number:.6g}" for number in numbers)))
    said = f"{len(answered)} of {len(inputs.x)} examples answered"
    if len(answered) < len(inputs.x):
        said += f", the others have a standard deviation above {float(found.sd[answered].max()):.4g}"
    if inputs.y is not None:
        chosen = Forecast(found.means[:, answered], found.noises[:, answered])
        figures = summarise(tally_numbers(chosen, inputs.y[answered]))
        said += f"; RMSE {figures['rmse']:.4g}, {100 * figures['coverage']:.1f} % within their intervals"
    return said + "."


def surest(entropy: Tensor, abstain: float) -> Tensor:
    """The places, ascending, of all but the share `abstain` with the highest entropy (or sd); at least one stays."""
    if not 0 <= abstain < 1:
        raise ModelError(f"--abstain takes a share from 0 up to, but not, 1, not {abstain:g}.")
    kept = max(1, len(entropy) - int(abstain * len(entropy) + 1e-9))
    return torch.sort(entropy, stable=True).indices[:kept].sort().values


def _write(
    out: TextIO, inputs: NewExamples, found: Prediction, classes: tuple[str, ...], answered: Tensor
) -> None:
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    columns = (found.labels, found.confidence, found.entropy, found.mutual_information)
    rows = zip(answered.tolist(), *(column[answered].tolist() for column in columns), strict=True)
    for place, label, *numbers in rows:
        writer.writerow((inputs.names[place], classes[label], *(f"{number:.6f}" for number in numbers)))
