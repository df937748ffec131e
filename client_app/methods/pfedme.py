"""pFedMe, the client's half: w_i goes down its Moreau envelope, min over θ of f(θ) + (λ/2)·‖θ − w_i‖².

    w_i = θ = w; for each of R batches
        K times on this batch   θ ← θ − η_p·(∇f(θ) + λ(θ − w_i))
        then                    w_i ← w_i − ηλ·(w_i − θ)

θ runs on from batch to batch, and starts at w again in each round. It is the personal model and stays; w_i is sent.

Different from the authors' code: its weight decay of 0.001, which the paper does not have, is left out, and batches are
shuffled.
"""

from typing import ClassVar

import torch
from pydantic import Field, model_validator

from bayes_core.flat import with_buffers
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import Count, Options, Positive, Rate


class EnvelopeOptions(Options):
    lr: Rate = Field(alias="pfedme.lr")
    lr_personal: Positive = Field(alias="pfedme.lr-personal")
    personal_steps: Count = Field(alias="pfedme.personal-steps")
    penalty: Positive = Field(alias="pfedme.penalty")

    @model_validator(mode="after")
    def _stable(self) -> "EnvelopeOptions":
        for key, rate in (("pfedme.lr", self.lr), ("pfedme.lr-personal", self.lr_personal)):
            if rate * self.penalty >= 2:
                raise ValueError(
                    f"{key}={rate:g} times pfedme.penalty={self.penalty:g} must stay below 2, or the steps diverge; "
                    "make one of them smaller."
                )
        return self


class PFedMe(FedAvg):
    """A network of one's own near w_i, and a w_i near all networks."""

    reads: ClassVar[type[Options]] = EnvelopeOptions
    options: EnvelopeOptions
    plain_sgd = True

    def start(self, received: Tensors) -> dict[str, torch.Tensor]:
        w = received["w"]
        return with_buffers({"theta": w.clone()}, self.first_buffers(w, received))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        options, f = self.options, self.mean_loss(state, received, server_round)
        w, loss = received["w"][0], torch.zeros((), device=self.device)
        theta = w
        for batch in self.batches(server_round):
            for _ in range(options.personal_steps):
                gradient = f.gradient(theta, batch)
                theta = theta - options.lr_personal * (gradient + options.penalty * (theta - w))
            w = w - options.lr * options.penalty * (w - theta)
            loss += f.value
        kept = with_buffers({"theta": theta[None]}, f.buffers)
        return Trained(kept, {"w": w[None]}, {"loss": float(loss) / self.settings.local_steps})

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        return {"pm": self.weights(state["theta"], state), **super().models(state, received)}


METHOD = PFedMe
