"""What a client's model says of data held out from its training data, and by how much it is too sure."""

import torch
from torch import Tensor

from bayes_core.predict.calibration import fit_temperature
from bayes_core.predict.conformal import (
    Promise,
    class_scores,
    least,
    number_scores,
    promised,
    promised_by_group,
)
from bayes_core.predict.predictor import Predictor
from client_app.data import DataError
from client_app.method import ClientMethod
from client_app.prepare import Pair
from fedbayes.protocol.settings import Settings
from fedbayes.protocol.streams import PREDICT, stream


def calibration(
    method: ClientMethod, model: Predictor, validation: Pair | None, server_round: int
) -> dict[str, Tensor]:
    """What is kept with a personal model, where it is asked for: `temperature`; `conformal`, a promise's numbers."""
    settings, kept = method.settings, {}
    if validation is None:
        return {}
    if settings.temperature_scaling:
        kept["temperature"] = torch.tensor(temperature(method, model, validation, server_round))
    if settings.conformal:
        # the draws that `fedbayes predict` will make: a new example is treated exactly as these are
        found = promise(method, model, validation, stream(0, PREDICT, device=method.device))
        kept["conformal"] = torch.tensor(found.numbers, dtype=torch.float64)
    return kept


def promise(method: ClientMethod, model: Predictor, validation: Pair, generator: torch.Generator) -> Promise:
    """The score that a conformal answer may have; of numbers in units of the predicted standard deviation, by group."""
    (x, y), samples, level = validation, method.settings.eval_samples, method.settings.conformal
    if not y.is_floating_point():
        return promised(class_scores(model.predict(x, samples, generator).probabilities, y), level)
    found = model.forecast(x, samples, generator)
    return promised_by_group(number_scores(found, y), found.sd, level)


def require_enough(settings: Settings, validation: Pair | None, many: bool) -> None:
    """DataError where conformal sets are asked for that cannot be had."""
    if not settings.conformal or validation is None:
        return
    if many:
        raise DataError("conformal is about one class or number an example, but these have several labels.")
    if (n := len(validation[1])) < (need := least(settings.conformal)):
        raise DataError(
            f"conformal={settings.conformal:g} takes at least {need} validation examples, and "
            f"validation-fraction={settings.validation_fraction:g} leaves {n}; raise it, or lower conformal."
        )


def temperature(method: ClientMethod, model: Predictor, validation: Pair, server_round: int) -> float:
    """The temperature that the validation examples ask for."""
    return fit_temperature(validated(method, model, validation, server_round), validation[1].reshape(-1))


def validated(method: ClientMethod, model: Predictor, validation: Pair, server_round: int) -> Tensor:
    """Class probabilities of the validation examples."""
    generator = method.stream(server_round, "validate")
    return model.predict(validation[0], method.settings.eval_samples, generator).probabilities
