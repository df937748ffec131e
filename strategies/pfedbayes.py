"""pFedBayes, the server's half: w ← (1−β)·w + β·mean of the clients' localized global distributions.

Zhang, Li, Shao, Liu, Zhou, Li: "Federated Learning via Variational Bayesian Inference: Personalization, Sparsity and
Clustering". `aggregation = "moments"` takes the minimiser of Σ KL(q_i ‖ w), the paper's own lemma, instead of the mean;
`trimmed-mean`, `median` and `krum` take what a few hostile sites cannot pull far. With `bayesian = "head"` (or names)
only these weights have a distribution; the others are plain, one mean for all clients as in FedAvg, or each client's
own (`plain-weights = "personal"`), and then never sent.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from bayes_core import Gaussian, extrapolate
from bayes_core.families import Family, family_of
from bayes_core.flat import Shapes, Split, flatten, shapes_of
from bayes_core.parts import ALL, bayesian_part
from bayes_core.server.aggregate import Aggregate, Mean
from bayes_core.server.moments import Moments
from bayes_core.server.robust import BY_NAME, Median, TrimmedMean
from fedbayes.protocol.messages import BODY
from fedbayes.protocol.settings import (
    Bayesian,
    Options,
    PlainWeights,
    RhoInit,
    Settings,
    SettingsError,
    Share,
    takes,
)
from strategies.rounds.method import ServerMethod, StepOptions
from strategies.rounds.roster import StrategyError
from strategies.rounds.state import Fresh, Part, State


class PriorOptions(StepOptions):
    aggregation: Annotated[
        Literal["mean", "moments", "trimmed-mean", "median", "krum"],
        takes("mean, moments, trimmed-mean, median or krum"),
    ]
    hostile_share: Annotated[float, takes("a number of at least 0 and below 0.5", ge=0, lt=0.5)]
    bayesian: Bayesian
    plain_weights: PlainWeights
    rho_init: RhoInit
    prior_decay: Share


class PFedBayes(ServerMethod):
    """One prior for all clients."""

    title = "pFedBayes"
    idea = "every client learns a Gaussian over its network's weights, with one prior for all"
    paper = "Zhang et al."
    reads: ClassVar[type[Options]] = PriorOptions
    options: PriorOptions
    split: Split | None = (
        None  # the network's plain weights and those with a distribution; None: all have one
    )
    knows_parts = False  # whether a network has told

    def __init__(self, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self.family = self.make_family()
        rule, share = self.options.aggregation, self.options.hostile_share
        if rule in BY_NAME:
            self.aggregate_by = partial(BY_NAME[rule], share=share)
            self.buffers_by = partial(Median if rule == "median" else TrimmedMean, share=share)
        else:
            self.aggregate_by = Moments if rule == "moments" else Mean

    def sum_for(self, state: State, into: str) -> Aggregate:
        """Of plain weights a mean, as FedAvg's, or the same robust sum as for all."""
        if into == BODY and self.options.aggregation not in BY_NAME:
            return Mean(state.sent[into])
        return super().sum_for(state, into)

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
        if words.get("plain-weights") == "personal" and words.get("bayesian") == ALL:
            raise SettingsError(
                "plain-weights=personal is for weights without a distribution, and with bayesian=all each has one; "
                "take bayesian=head, or names."
            )
        shared = words.get("plain-weights") != "personal"
        if words.get("aggregation") == "krum" and words.get("bayesian") != ALL and shared:
            raise SettingsError(
                f"aggregation=krum trusts whole uploads, and with bayesian={words['bayesian']} an upload has two "
                "parts; take trimmed-mean or median."
            )

    def make_family(self) -> Family:
        return Gaussian()

    @property
    def rho_origin(self) -> float:
        return self.options.rho_init

    def weights_of(self, network: nn.Module) -> Tensor:
        try:
            self.split, self.knows_parts = bayesian_part(network, self.options.bayesian), True
        except ValueError as error:
            raise StrategyError(str(error)) from None
        return flatten(network)

    def distributed(self, network: nn.Module) -> Shapes:
        split = bayesian_part(network, self.options.bayesian)
        return shapes_of(network) if split is None else split.own_shapes

    def init(self, fresh: Fresh) -> State:
        weights = fresh()
        if self.split is None:
            if self.options.bayesian != ALL and not self.knows_parts:
                raise ValueError(
                    f"bayesian={self.options.bayesian} starts from the weights that weights_of(network) gives: it must "
                    "know the parts."
                )
            return State({"w": self.prior(weights)})
        own = {"w": self.prior(self.split.own(weights))}
        if self.options.plain_weights == "personal":
            return State(own)
        return State({**own, BODY: self.split.shared(weights)[None]})

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        return {**super().expects(state, site, report), **self.plain_parts(state)}

    def plain_parts(self, state: State) -> dict[str, Part]:
        return {BODY: Part(BODY, state.sent[BODY])} if BODY in state.sent else {}

    def towards(self, v: Tensor, target: Tensor) -> Tensor:
        """Of plain weights the extrapolation alone."""
        if family_of(v, self.family) is not self.family:
            return extrapolate(v, target, self.options.beta)
        return self.prior_towards(v, target)

    def prior_towards(self, v: Tensor, target: Tensor) -> Tensor:
        """With a hyper-prior around 0: nothing else keeps the means of a learned prior from overfitting."""
        moved = super().towards(v, target)
        if self.options.prior_decay:
            moved = torch.cat([moved[:1] * (1 - self.options.prior_decay), moved[1:]])
        return moved

    def prior(self, weights: Tensor) -> Tensor:
        """The distribution before the first round, from an ordinary network's weights."""
        return self.family.init(weights, self.options.rho_init)


METHOD = PFedBayes
