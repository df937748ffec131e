"""FedAMP, the server's half: for each client a model of its own, mixed from all clients' by how near they are.

    u_i = Σ_j ξ_ij·w_j,  ξ_ij = α·A′(‖w_i − w_j‖²),  A(x) = 1 − e^(−x/σ),  ξ_ii the rest

goes to client i only. Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: "Personalized Cross-Silo Federated Learning on Non-IID
Data", 2021. ξ_ii must not be negative: where α is too large for that, the largest α that is not takes its place, and
the column `attention_alpha` tells it.

The server keeps every client's w_i and u_i: 2·N·T numbers, 0.6 GB for 1000 clients of the DNN on MNIST.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from bayes_core.server.attention import by_distance, passed
from fedbayes.protocol.columns import Column
from fedbayes.protocol.settings import Options, Positive, Settings, SettingsError
from strategies.fedavg import FedAvg
from strategies.rounds.state import Came, Part, State, Traits


class DistanceOptions(Options):
    alpha: Positive = Field(alias="fedamp.alpha")
    sigma: Positive = Field(alias="fedamp.sigma")


class FedAMP(FedAvg):
    """A cloud model for each client. A site without a past gets the common start."""

    title = "FedAMP"
    idea = "every client's network is drawn to a mixture of the networks that are near it"
    paper = "Huang et al. 2021"
    traits = Traits(every_site=True, single_uploads=True, global_model=False)
    columns: ClassVar[tuple[Column, ...]] = (
        Column("attention_least", "least attention to another client"),
        Column("attention_mean", "mean attention to another client"),
        Column("attention_most", "most attention to another client"),
        Column("attention_alpha", "α as it was used"),
    )
    reads: ClassVar[type[Options]] = DistanceOptions
    options: Any

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        if settings.aggregation_confidence != "off":
            raise SettingsError(
                f"aggregation-confidence weighs uploads in a mean, and method={settings.method} takes none; "
                "leave it out."
            )

    def send(self, state: State, site: str) -> Mapping[str, Tensor]:
        return {"w": self._received(state, site)}

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        return {"w": Part(site, self._received(state, site))}

    def step(self, state: State, came: Came) -> State:
        """The cloud models of all clients that have ever uploaded, from the latest upload of each."""
        known = dict(zip(state.facts.get("sites", []), state.kept.get("w", ()), strict=True))
        known |= {one.site: one.parts["w"][0] for one in came.uploads}
        sites = sorted(known)
        w = torch.stack([known[site] for site in sites])
        attention, told = self.attention(w)
        others = attention[~torch.eye(len(w), dtype=torch.bool)]
        if len(others):
            told = {
                "least": float(others.min()),
                "mean": float(others.mean()),
                "most": float(others.max()),
            } | told
        return replace(
            state, kept={"w": w, "u": passed(attention, w)}, facts={"sites": sites, "attention": told}
        )

    def attention(self, w: Tensor) -> tuple[Tensor, dict[str, float]]:
        """ξ (N, N) of models (N, T), and what is told of it."""
        found, alpha = by_distance(w, self.options.alpha, self.options.sigma)
        return found, {"alpha": alpha}

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        return {
            f"attention_{name}": float(f"{value:.6g}") for name, value in state.facts["attention"].items()
        }, {}

    def _received(self, state: State, site: str) -> Tensor:
        sites = state.facts.get("sites", [])
        return state.kept["u"][sites.index(site)][None] if site in sites else state.sent["w"]


METHOD = FedAMP
