"""How sure a client's model is: on its own training data, and by how much too sure on data held out from it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bayes_core.predict.calibration import fit_temperature
from bayes_core.predict.uncertainty import Prediction, predict
from client_app.method import ClientMethod, Trained, buffers_in
from client_app.prepare import Pair


def training_uncertainty(
    method: ClientMethod, v: Tensor, buffers: Mapping[str, Tensor], server_round: int
) -> float:
    """The mean entropy, in nats, of the predictive on this client's training examples."""
    prediction = _predict(method, v, method.x, buffers, server_round, "uncertainty")
    return float(prediction.entropy.mean())


def calibration(
    method: ClientMethod, trained: Trained, validation: Pair | None, server_round: int
) -> dict[str, Tensor]:
    """What is kept with a personal model: the temperature, where one is asked for."""
    if not method.settings.temperature_scaling or validation is None:
        return {}
    v, buffers = method.model_of(trained), buffers_in(trained.state)
    return {"temperature": torch.tensor(temperature(method, v, validation, buffers, server_round))}


def temperature(
    method: ClientMethod,
    v: Tensor,
    validation: Pair,
    buffers: Mapping[str, Tensor],
    server_round: int,
) -> float:
    """The temperature that the validation examples ask for."""
    x, y = validation
    return fit_temperature(_predict(method, v, x, buffers, server_round, "validate").probabilities, y)


def _predict(
    method: ClientMethod, v: Tensor, x: Tensor, buffers: Mapping[str, Tensor], server_round: int, purpose: str
) -> Prediction:
    generator = method.stream(server_round, purpose)
    return predict(method.network, method.family, v, x, method.settings.eval_samples, generator, buffers)
