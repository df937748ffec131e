"""pFedVEM, the server's half: the body is a mean by examples, the head a mean by how near personal heads stay to it.

Zhu, Ma, Blaschko: "Confidence-aware Personalized Federated Learning via Variational Expectation Maximization", 2023.
A client's head has the prior N(μ, ρ_i²); the M-step is μ = Σ μ_i/ρ_i² / Σ 1/ρ_i². What is sent is one weight vector:
body and μ, which is the global model too.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayes_core import Point, mean
from bayes_core.flat import Split, flatten
from fedbayes.protocol.columns import Column
from fedbayes.protocol.settings import HeadName, NonNegative, Options
from strategies.rounds.method import ServerMethod
from strategies.rounds.replies import BadReply
from strategies.rounds.state import Came, Fresh, Part, State, Traits

RHO, MEAN_RHO = "rho", "mean_rho"  # ρ_i in a report and of a client, and the mean of all
LOWEST, HIGHEST = 1e-4, 1e4  # ρ_i that can be meant


class ConfidenceOptions(Options):
    beta: NonNegative
    head: HeadName


class PFedVEM(ServerMethod):
    """A shared body, and the mean of the personal heads as their prior."""

    title = "pFedVEM"
    idea = (
        "clients share a body, and each learns a Gaussian over its own head; heads near their mean count more"
    )
    paper = "Zhu et al. 2023"
    traits = Traits(single_uploads=True)
    columns = (
        Column(MEAN_RHO, "spread of personal heads around the global one"),
        Column(RHO, "spread around the global head", "client"),
    )
    reads: ClassVar[type[Options]] = ConfidenceOptions
    options: ConfidenceOptions
    family = Point()
    columns_of_head: Tensor | None = None

    def weights_of(self, network: nn.Module) -> Tensor:
        weights = flatten(network)
        split = Split.at_head(network, self.options.head)
        self.columns_of_head = split.own(torch.arange(len(weights)))
        return weights

    def init(self, fresh: Fresh) -> State:
        weights = fresh()
        if self.columns_of_head is None:
            raise ValueError(
                "pFedVEM starts from the weights that its weights_of(network) gives: it must know the head."
            )
        return State({"w": weights[None].clone()}, kept={"head": self.columns_of_head})

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        rho = report.get(RHO)
        if not isinstance(rho, float) or not LOWEST <= rho <= HIGHEST:
            raise BadReply(f"ρ = {rho!r} instead of a number from {LOWEST:g} to {HIGHEST:g}")
        return super().expects(state, site, report)

    def step(self, state: State, came: Came) -> State:
        """w ← (1−β)·w + β·(body: Σ n_i·w_i / Σ n_i, head: Σ μ_i/ρ_i² / Σ 1/ρ_i²)."""
        uploads = [one.parts["w"] for one in came.uploads]
        target = mean(uploads, [one.weight * one.n_train for one in came.uploads])
        heads = mean(uploads, [one.weight / one.report[RHO] ** 2 for one in came.uploads])
        head = state.kept["head"]
        target[:, head] = heads[:, head]
        return replace(state, sent={"w": self.towards(state.sent["w"], target)})

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        said = {one.site: round(one.report[RHO], 6) for one in came.uploads}
        overall = round(math.fsum(said.values()) / max(len(said), 1), 6)
        return {MEAN_RHO: overall}, {site: {RHO: rho} for site, rho in said.items()}


METHOD = PFedVEM
