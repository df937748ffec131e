"""APFL, the client's half: a network v of one's own, and the share α of it in the personal model.

For each of R batches, with v̄ = αv + (1−α)w_i, all gradients at the old values:

    w_i ← w_i − η∇f(w_i),  v ← v − ηα∇f(v̄)
    and on the round's first batch  α ← α − η⟨v − w_i, ∇f(v̄)⟩, held within 0 … 1

w_i starts at w in each round and is sent; v and α stay here. The personal model is αv + (1−α)w, with the w that was
received: weights are mixed, not outputs.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field

from bayes_core.flat import with_buffers
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import Options, Rate, takes


class MixtureOptions(Options):
    lr: Rate = Field(alias="apfl.lr")
    mixture: Annotated[float, takes("a number from 0 to 1", alias="apfl.mixture", ge=0, le=1)]


class APFL(FedAvg):
    """The weights of two networks, mixed in a share that is learned."""

    reads: ClassVar[type[Options]] = MixtureOptions
    options: MixtureOptions
    plain_sgd = True

    def start(self, received: Tensors) -> dict[str, torch.Tensor]:
        w = received["w"]
        own = {"v": w.clone(), "alpha": torch.tensor(self.options.mixture, device=self.device)}
        return with_buffers(own, self.first_buffers(w, received))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        rate, f = self.options.lr, self.mean_loss(state, received, server_round)
        mixed = self.mean_loss(state, {}, server_round)
        w, v, alpha, loss = (
            received["w"][0],
            state["v"][0],
            state["alpha"],
            torch.zeros((), device=self.device),
        )
        for number, batch in enumerate(self.batches(server_round)):
            g, h = f.gradient(w, batch), mixed.gradient(alpha * v + (1 - alpha) * w, batch)
            moved = (alpha - rate * (v - w).dot(h)).clamp(0, 1)
            w, v, alpha = w - rate * g, v - rate * alpha * h, alpha if number else moved
            loss += mixed.value
        kept = with_buffers({"v": v[None], "alpha": alpha}, mixed.buffers)
        report = {"loss": float(loss) / self.settings.local_steps, "mixture": float(alpha)}
        return Trained(kept, {"w": w[None]}, report, buffers=f.buffers)

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        alpha, w = state["alpha"], received["w"]
        pm = self.made(alpha * state["v"] + (1 - alpha) * w, state)
        return {"pm": pm, "gm": self.made(w, state, received)}


METHOD = APFL
