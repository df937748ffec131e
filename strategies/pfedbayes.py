"""pFedBayes, the server's half: w ← (1−β)·w + β·mean of the clients' localized global distributions.

Zhang, Li, Shao, Liu, Zhou, Li: "Federated Learning via Variational Bayesian Inference: Personalization, Sparsity and
Clustering". `aggregation = "moments"` takes the minimiser of Σ KL(q_i ‖ w), the paper's own lemma, instead of the mean;
`trimmed-mean`, `median` and `krum` take what a few hostile sites cannot pull far.
"""

from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from bayes_core import Gaussian
from bayes_core.families import Family
from bayes_core.server.aggregate import Mean, Moments
from bayes_core.server.robust import BY_NAME, Median, TrimmedMean
from fedbayes.protocol.settings import Options, RhoInit, Settings, SettingsError, Share, takes
from strategies.rounds.method import ServerMethod, StepOptions
from strategies.rounds.state import Fresh, State


class PriorOptions(StepOptions):
    aggregation: Annotated[
        Literal["mean", "moments", "trimmed-mean", "median", "krum"],
        takes("mean, moments, trimmed-mean, median or krum"),
    ]
    hostile_share: Annotated[float, takes("a number of at least 0 and below 0.5", ge=0, lt=0.5)]
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
        rule, share = self.options.aggregation, self.options.hostile_share
        if rule in BY_NAME:
            self.aggregate_by = partial(BY_NAME[rule], share=share)
            self.buffers_by = partial(Median if rule == "median" else TrimmedMean, share=share)
        else:
            self.aggregate_by = Moments if rule == "moments" else Mean

    @classmethod
    def check(cls, settings: Settings) -> None:
        """A robust sum hears nobody who says that it counts for more."""
        super().check(settings)
        words = settings.as_config()
        for key, counts in (("weighting", "examples"), ("aggregation-confidence", "weight")):
            if words.get("aggregation") in BY_NAME and words.get(key) == counts:
                raise SettingsError(
                    f"aggregation={words['aggregation']} counts every site once, and with {key}={counts} sites would "
                    "say how much they count; leave one of them out."
                )

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
