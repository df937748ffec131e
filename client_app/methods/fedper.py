"""FedPer, the client's half: `local-steps` steps on the received body and one's own head together; the body is sent.

The personal model is the received body with the own head. There is no global one: a mean of heads is not the method.
All clients' heads start from the common start.
"""

from typing import Any, ClassVar

from torch import Tensor

from bayes_core.flat import Split, buffers_of, flatten, with_buffers
from bayes_core.inference.plain import Weights
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import HeadName, Options, SettingsError


class HeadOptions(Options):
    head: HeadName


class FedPer(FedAvg):
    """A head of one's own on a body for everybody."""

    reads: ClassVar[type[Options]] = HeadOptions
    options: HeadOptions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        try:
            self.split = Split.at_head(self.network, self.options.head)
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def start(self, received: Tensors) -> dict[str, Tensor]:
        head = self.split.own(flatten(self.network)[None])
        return with_buffers({"head": head}, buffers_of(self.network))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        trained, loss = self.rounds(self.begin(state, self.joined(state, received)), server_round)
        kept = with_buffers({"head": self.split.own(trained.v)}, trained.buffers)
        return Trained(kept, {"w": self.split.shared(trained.v)}, {"loss": loss})

    def rounds(self, weights: Weights, server_round: int) -> tuple[Weights, float]:
        """The steps of a round, on body and head."""
        return self.steps(weights, server_round)

    def joined(self, state: Tensors, received: Tensors) -> dict[str, Tensor]:
        """The whole network as if it had been received."""
        return {"w": self.split.join(received["w"], state["head"])}

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        return {"pm": self.made(self.joined(state, received)["w"], state)}


METHOD = FedPer
