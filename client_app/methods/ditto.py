"""Ditto, the client's half: a round of FedAvg, and steps on a network of one's own.

    w_i: R steps from w on f                        → sent
    v:   R·`personal-steps` steps on f(v) + (λ/2)·‖v − w‖², about the w that was received  → the personal model

Neither touches the other, so their order does not matter; they see the same batches, as in the original. λ = 0 is
`local`.
"""

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from bayes_core.inference.plain import Proximal, Weights
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import NonNegative, Options, Rate, Steps


class DittoOptions(Options):
    penalty: NonNegative = Field(alias="ditto.penalty")
    personal_steps: Steps
    lr_personal: Rate


class Ditto(FedAvg):
    """FedAvg, and a network of one's own near its weights."""

    reads: ClassVar[type[Options]] = DittoOptions
    options: DittoOptions

    def start(self, received: Tensors) -> dict[str, Tensor]:
        w = received["w"]
        begun = Weights.start(w, self.network, self.settings.optimizer)
        return replace(begun, buffers=self.first_buffers(w, received)).state_dict()

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        sent, _ = self.steps(self.begin(state, received), server_round)
        own, loss = self.steps(
            Weights.load_state_dict(state),
            server_round,
            [Proximal(received["w"][0], self.options.penalty)],
            count=self.settings.local_steps * self.personal_steps(self.options.personal_steps),
            lr=self.options.lr_personal,
        )
        return Trained(own.state_dict(), {"w": sent.v}, {"loss": loss}, buffers=sent.buffers)

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        pm = self.weights(state["theta"], state)
        return {"pm": pm, "gm": self.made(received["w"], state, received)}


METHOD = Ditto
