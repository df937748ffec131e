"""pFedBayes, the server's half: w ← (1−β)·w + β·mean of the clients' localized global distributions.

Zhang, Li, Shao, Liu, Zhou, Li: "Federated Learning via Variational Bayesian Inference: Personalization, Sparsity and
Clustering". `aggregation = "moments"` takes the minimiser of Σ KL(q_i ‖ w), the paper's own lemma, instead of the mean.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from bayes_core import Gaussian
from bayes_core.families import Family
from bayes_core.server.aggregate import Mean, Moments
from fedbayes.protocol.settings import Options, RhoInit, Share, takes
from strategies.rounds.method import ServerMethod, StepOptions
from strategies.rounds.state import Fresh, State


class PriorOptions(StepOptions):
    aggregation: Annotated[Literal["mean", "moments"], takes("mean or moments")]
    rho_init: RhoInit
    prior_decay: Share


class PFedBayes(ServerMethod):
    """One prior for all clients."""

    title = "pFedBayes"
    idea = "every client learns a Gaussian over its network's weights, with one prior for all"
    paper = "Zhang et al."
    reads: ClassVar[type[Options]] = PriorOptions
    options: PriorOptions

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.family = self.make_family()
        self.aggregate_by = Moments if self.options.aggregation == "moments" else Mean

    def make_family(self) -> Family:
        return Gaussian()

    @property
    def rho_origin(self) -> float:
        return self.options.rho_init

    def init(self, fresh: Fresh) -> State:
        return State({"w": self.prior(fresh())})

    def towards(self, v: Tensor, target: Tensor) -> Tensor:
        """With a hyper-prior around 0: nothing else keeps the means of a learned prior from overfitting."""
        moved = super().towards(v, target)
        if self.options.prior_decay:
            moved = torch.cat([moved[:1] * (1 - self.options.prior_decay), moved[1:]])
        return moved

    def prior(self, weights: Tensor) -> Tensor:
        """The distribution before the first round, from an ordinary network's weights."""
        return self.family.init(weights, self.options.rho_init)


METHOD = PFedBayes
