"""FedPA, the client's half: SGD at a constant rate, whose averaged iterates are samples of this client's posterior.

Burn-in steps, then for each sample the mean of so many iterates; what is sent is w − Δ (see posterior_delta.py). The
rounds before `fedpa.sampling-from` are FedAvg's, with the same steps. Adam, or a rate that falls, would not sample.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from bayes_core.flat import buffers_in, with_buffers
from bayes_core.inference.optimisers import OptimizerState
from bayes_core.inference.plain import Weights, train_weights
from bayes_core.inference.posterior_delta import PosteriorDelta
from client_app.method import Tensors, Trained, statistics_in
from client_app.methods.fedavg import FedAvg
from fedbayes.protocol.settings import Options, Rate, takes


class SamplingOptions(Options):
    lr: Rate = Field(alias="fedpa.lr")
    sampling_from: int = takes("the number of a round, from 1 on", alias="fedpa.sampling-from", ge=1)
    burn_in: int = takes("a whole number of at least 0", alias="fedpa.burn-in", ge=0)
    samples: int = takes("a whole number of at least 2", alias="fedpa.samples", ge=2)
    sample_steps: int = takes("a whole number of at least 1", alias="fedpa.sample-steps", ge=1)
    shrinkage: float = takes("a number of at least 0", alias="fedpa.shrinkage", ge=0, allow_inf_nan=False)


class Sampler:
    """Sees every iterate of SGD, and hands the mean of each `steps` of them on as a sample."""

    def __init__(self, delta: PosteriorDelta, burn_in: int, steps: int) -> None:
        self.delta, self.burn_in, self.steps = delta, burn_in, steps
        self.total = torch.zeros_like(delta.w)

    def __call__(self, step: int, v: Tensor) -> None:
        if step <= self.burn_in:
            return
        self.total += v
        if (step - self.burn_in) % self.steps == 0:
            self.delta.add(self.total / self.steps)
            self.total.zero_()


class FedPA(FedAvg):
    """One weight vector for everybody; nothing but buffers is kept."""

    reads: ClassVar[type[Options]] = SamplingOptions
    options: SamplingOptions
    plain_sgd = True

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        options, w = self.options, received["w"]
        samples = server_round >= options.sampling_from
        delta = PosteriorDelta(w, options.shrinkage)
        trained, loss = train_weights(
            self.network,
            Weights(w, OptimizerState.blank(w, "sgd"), {**buffers_in(state), **statistics_in(received)}),
            self.x,
            self.y,
            steps=options.burn_in + options.samples * options.sample_steps
            if samples
            else self.settings.local_steps,
            batch_size=self.settings.batch_size,
            optimizer="sgd",
            lr=options.lr,
            adam_beta2=self.settings.adam_beta2,
            generator=self.stream(server_round, "train"),
            likelihood=self.likelihood,
            augment=self.augmentation and self.augmentation(server_round),
            after_step=Sampler(delta, options.burn_in, options.sample_steps) if samples else None,
        )
        kept = with_buffers({}, trained.buffers)
        if not samples:
            return Trained(kept, {"w": trained.v}, {"loss": loss})
        report = {"loss": loss, "correction": delta.correction()}
        return Trained(kept, {"w": w - delta.result()}, report)


METHOD = FedPA
