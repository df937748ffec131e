"""What a client's model says of data held out from its training data, and by how much it is too sure."""

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
    return fit_temperature(validated(method, model, validation, server_round), validation[1].reshape(-1))


def validated(method: ClientMethod, model: Predictor, validation: Pair, server_round: int) -> Tensor:
    """Class probabilities of the validation examples."""
    generator = method.stream(server_round, "validate")
    return model.predict(validation[0], method.settings.eval_samples, generator).probabilities
