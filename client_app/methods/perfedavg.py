"""Per-FedAvg, the client's half: steps on what the weights will be worth after a step, F(w) = f(w − α∇f(w)).

    w̃ = w − α∇f(w; D),  v = ∇f(w̃; D′)
    first order:   w ← w − β·v
    Hessian-free:  w ← w − β·(v − α·h),  h = [∇f(w + δv; D″) − ∇f(w − δv; D″)] / 2δ

with three independent batches; h and the step are taken at the old w. The personal model is w − α∇f(w) on all training
data, `perfedavg.adapt-steps` times. δ is 1e-3/‖v‖: a fixed one loses the difference in float32 where v is short.

`local-steps` counts steps on w. One costs two gradients, Hessian-free four, so a round of R steps sees 2Rb or 4Rb
examples. The paper's experiments name one learning rate; here α and β are two settings.

First-order steps go the wrong way where the loss curves by more than 1/α, since w̃ then lies beyond the minimum; those
without a Hessian do not. A regression's learned noise gets there as it shrinks.
"""

from typing import ClassVar

import torch
from pydantic import Field

from bayes_core.flat import with_buffers
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import Count, Options, Positive, Rate, Switch


class MetaOptions(Options):
    lr: Rate = Field(alias="perfedavg.lr")
    lr_adapt: Positive = Field(alias="perfedavg.lr-adapt")
    hessian_free: Switch = Field(alias="perfedavg.hessian-free")
    adapt_steps: Count = Field(alias="perfedavg.adapt-steps")


class PerFedAvg(FedAvg):
    """Weights from which a step on a client's own data leads to a good model of its own."""

    reads: ClassVar[type[Options]] = MetaOptions
    options: MetaOptions
    plain_sgd = True

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        alpha, beta = self.options.lr_adapt, self.options.lr
        f, w = self.mean_loss(state, received, server_round), received["w"][0]
        loss = torch.zeros((), device=self.device)
        purposes = ("inner", "outer", "curvature")
        streams = (self.batches(server_round, purpose) for purpose in purposes)
        for inner, outer, other in zip(*streams, strict=True):
            v = f.gradient(w - alpha * f.gradient(w, inner), outer)
            loss += f.value
            if self.options.hessian_free:
                v = v - alpha * f.hessian_times(w, v, other)
            w = w - beta * v
        report = {"loss": float(loss) / self.settings.local_steps}  # of the adapted weights
        return Trained(with_buffers({}, f.buffers), {"w": w[None]}, report)

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        f, w = self.mean_loss(state, received), received["w"][0]
        for _ in range(self.options.adapt_steps):
            w = w - self.options.lr_adapt * f.gradient_of_all(w)
        return {"pm": self.made(w[None], state), **super().models(state, received)}


METHOD = PerFedAvg
