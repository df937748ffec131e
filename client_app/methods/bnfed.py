"""BNFed (PFNM), the client's half: `local-steps` SGD steps from the neurons that its own were matched with.

In its first round a client starts from an initialisation of its own: from a common one, neurons would match by their
places. Nothing is kept. The matched network, wider than the client's, is the global model; there is no personal one.
"""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from bayes_core import Point
from bayes_core.chains import widened, widths_of
from bayes_core.flat import flatten
from bayes_core.inference.plain import Weights, train_weights
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from client_app.method import ClientMethod, Tensors, Trained
from fedbayes.protocol.settings import Options, Rate, SettingsError


class NeuronOptions(Options):
    lr: Rate = Field(alias="bnfed.lr")


class BNFed(ClientMethod):
    """A network of one's own width."""

    reads: ClassVar[type[Options]] = NeuronOptions
    options: NeuronOptions
    plain_sgd = True
    family = Point()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        try:
            if len(self.x) == 0 or not (
                self.y.is_floating_point() or self.y.ndim == 2
            ):  # a regression is refused by the coordinator
                self.widths = widths_of(self.network)
        except ValueError as error:
            raise SettingsError(
                f"method=bnfed matches neurons of fully connected networks: {error}."
            ) from None

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return {}

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        v = received["own"] if "own" in received else self.own_start()
        trained, loss = train_weights(
            self.network,
            Weights.start(v, self.network, "sgd"),
            self.x,
            self.y,
            steps=self.settings.local_steps,
            batch_size=self.settings.batch_size,
            optimizer="sgd",
            lr=self.options.lr,
            adam_beta2=self.settings.adam_beta2,
            generator=self.stream(server_round, "train"),
            likelihood=self.likelihood,
            augment=self.augmentation and self.augmentation(server_round),
        )
        return Trained({}, {"w": trained.v}, {"loss": loss}, {"w": "own"} if "own" in received else {})

    def own_start(self) -> Tensor:
        """The weights (1, T) of a newly initialised network."""
        made = widened(self.network, self.widths).cpu()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.stream("start").initial_seed())
            for layer in made.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        return flatten(made)[None].to(self.device)

    def network_for(self, received: Tensors) -> nn.Module:
        return widened(self.network, received["widths"].int().tolist())

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        return {"gm": WeightsPredictor(self.network_for(received), self.family, received["w"], {})}

    def model_of(self, trained: Trained, received: Tensors) -> Predictor:
        """The client's own network, before it is matched."""
        return self.weights(trained.uploads["w"], trained.state)


METHOD = BNFed
