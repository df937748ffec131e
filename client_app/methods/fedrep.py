"""FedRep, the client's half: steps on the head with the received body fixed, then on the body with that head fixed.

`fedrep.head-steps` of the `local-steps` are the head's, by default half of them. Everything else is FedPer's.
"""

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from bayes_core.inference.optimisers import OptimizerState
from bayes_core.inference.plain import Held, Weights
from client_app.methods.fedper import FedPer, HeadOptions
from fedbayes.protocol.settings import Natural, Options


class PhaseOptions(HeadOptions):
    head_steps: Natural = Field(alias="fedrep.head-steps")


class FedRep(FedPer):
    """A body for everybody, to which each client fits its head first."""

    reads: ClassVar[type[Options]] = PhaseOptions
    options: PhaseOptions

    def rounds(self, weights: Weights, server_round: int) -> tuple[Weights, float]:
        total = self.settings.local_steps
        first = self.options.head_steps or total // 2
        body, head = torch.ones_like(self.split.shared(weights.v)), torch.ones_like(self.split.own(weights.v))
        phases = {
            "head": (first, self.split.join(body * 0, head)),
            "body": (total - first, self.split.join(body, head * 0)),
        }
        loss, blank = 0.0, OptimizerState.blank(weights.v, self.settings.optimizer)
        for purpose, (count, moves) in phases.items():
            weights, met = self.steps(
                replace(weights, optimizer=blank),
                server_round,
                [Held(moves[0])],
                count=count,
                purpose=purpose,
            )
            loss += met * count / total
        return weights, loss


METHOD = FedRep
