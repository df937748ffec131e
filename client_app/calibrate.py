"""By how much a client's model is too sure, on data held out from its training data."""

import torch
from torch import Tensor

from bayes_core.predict.calibration import fit_temperature
from bayes_core.predict.predictor import Predictor
from client_app.method import ClientMethod
from client_app.prepare import Pair


def calibration(
    method: ClientMethod, model: Predictor, validation: Pair | None, server_round: int
) -> dict[str, Tensor]:
    """What is kept with a personal model: the temperature, where one is asked for."""
    if not method.settings.temperature_scaling or validation is None:
        return {}
    return {"temperature": torch.tensor(temperature(method, model, validation, server_round))}


def temperature(method: ClientMethod, model: Predictor, validation: Pair, server_round: int) -> float:
    """The temperature that the validation examples ask for."""
    x, y = validation
    generator = method.stream(server_round, "validate")
    return fit_temperature(model.predict(x, method.settings.eval_samples, generator).probabilities, y)
