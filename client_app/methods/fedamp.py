"""FedAMP, the client's half: steps on f(w_i) + (λ/2α)·‖w_i − u_i‖², from one's own w_i, about the received u_i.

λ/α is the setting `fedamp.penalty`. w_i is the personal model, and is sent; there is no global one.
"""

from typing import ClassVar

from pydantic import Field

from bayes_core.inference.plain import Proximal, Weights
from client_app.method import Tensors, Trained
from client_app.methods.local import Local
from fedbayes.protocol.settings import NonNegative, Options


class CloudOptions(Options):
    penalty: NonNegative = Field(alias="fedamp.penalty")


class FedAMP(Local):
    """A network of one's own, near a mixture of those that are like it."""

    reads: ClassVar[type[Options]] = CloudOptions
    options: CloudOptions

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        near = Proximal(received["w"][0], self.options.penalty)
        trained, loss = self.steps(Weights.load_state_dict(state), server_round, [near])
        return Trained(trained.state_dict(), {"w": trained.v}, {"loss": loss})


METHOD = FedAMP
