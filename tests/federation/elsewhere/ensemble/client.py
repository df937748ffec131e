"""A method from elsewhere, the client's half: the personal model is a mixture of one's own network and the received."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from bayes_core import Point
from bayes_core.families import Family
from bayes_core.inference.plain import Weights, train_weights
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from bayes_core.predict.uncertainty import Prediction, entropy
from client_app.method import ClientMethod, Tensors, Trained
from fedbayes.protocol.settings import Options, takes


class EnsembleOptions(Options):
    mix: float = takes("a number from 0 to 1", alias="ensemble.mix", default=0.5, ge=0, le=1)


class Mixture(Predictor):
    """Of two networks: their probabilities, weighted. It has neither draws nor a mean network."""

    def __init__(self, network: nn.Module, own: Tensor, shared: Tensor, mix: Tensor) -> None:
        self.own, self.shared = (WeightsPredictor(network, Point(), v, {}) for v in (own, shared))
        self.mix = mix

    def predict(self, x: Tensor, samples: int, generator: torch.Generator) -> Prediction:
        a, b = (one.predict(x, 1, generator).probabilities for one in (self.own, self.shared))
        p = self.mix.double() * a + (1 - self.mix.double()) * b
        return Prediction(p, entropy(p), torch.zeros(len(p), dtype=torch.float64))

    def forecast(self, x: Tensor, samples: int, generator: torch.Generator) -> Forecast:
        both = [one.forecast(x, 1, generator) for one in (self.own, self.shared)]
        return Forecast(torch.cat([one.means for one in both]), torch.cat([one.noises for one in both]))

    def tensors(self) -> dict[str, Tensor]:
        return {"mixture.own": self.own.v, "mixture.shared": self.shared.v, "mixture.mix": self.mix}


class Ensemble(ClientMethod):
    reads: ClassVar[type[Options]] = EnsembleOptions
    options: EnsembleOptions
    family = Point()

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return Weights.start(received["w"], self.network, self.settings.optimizer).state_dict()

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        settings = self.settings
        trained, loss = train_weights(
            self.network, Weights.load_state_dict(state), self.x, self.y, steps=settings.local_steps,
            batch_size=settings.batch_size, optimizer=settings.optimizer, lr=settings.lr_global,
            adam_beta2=settings.adam_beta2, generator=self.stream(server_round, "train"), likelihood=self.likelihood,
        )  # fmt: skip
        uploads = {
            "w": trained.v,
            "sizes": torch.tensor([float(len(self.x)), loss, float(received["told"][0])]),
        }
        return Trained(trained.state_dict(), uploads, {"loss": loss})

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        mix = torch.tensor(self.options.mix)
        return {
            "pm": Mixture(self.network, state["theta"], received["w"], mix),
            "gm": self.weights(received["w"], state),
        }

    @classmethod
    def restore(cls, network: nn.Module, family: Family, tensors: Mapping[str, Tensor]) -> Predictor | None:
        names = ("mixture.own", "mixture.shared", "mixture.mix")
        return Mixture(network, *(tensors[name] for name in names)) if names[0] in tensors else None


METHOD = Ensemble
