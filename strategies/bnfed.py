"""BNFed (PFNM), the server's half: clients' hidden neurons are matched, and one wider network is made of all of them.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni: "Bayesian Nonparametric Federated Learning of Neural Networks",
2019; the matching is bayes_core/server/matching.py. A client receives the neurons that its own were matched with, so
that its width stays, and the matched network, which is the global model. The next matching goes on from this one.

A client without examples of a class has no say in its output weights, where sites tell their label counts
(`share-labels`); where one does not, all have the same say. With the authors' variances (1 and 1) the prior shrinks
output weights by half in every round, since the clients' shares of a class add up to 1.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from bayes_core import Point
from bayes_core.chains import widths_of
from bayes_core.flat import flatten
from bayes_core.server.matching import Array, Beliefs, match_networks, pack, part_of, unpack, widths_in
from fedbayes.protocol.columns import Column
from fedbayes.protocol.settings import Options, Settings, SettingsError, takes
from fedbayes.protocol.streams import seed_of
from strategies.rounds.method import ServerMethod
from strategies.rounds.state import Came, Fresh, Part, State, Traits

SWEEPS = 3  # in which each client is matched anew


class MatchingOptions(Options):
    variance: float = takes("a number above 0", alias="bnfed.neuron-variance", gt=0, allow_inf_nan=False)
    prior: float = takes("a number above 0", alias="bnfed.neuron-prior", gt=0, allow_inf_nan=False)
    mass: float = takes("a number above 0", alias="bnfed.neuron-mass", gt=0, allow_inf_nan=False)
    cap: int = takes("a whole number of at least 1", alias="bnfed.neuron-cap", ge=1)


class BNFed(ServerMethod):
    """A network of all neurons that clients have."""

    title = "BNFed"
    idea = "one network for everybody, as wide as it takes to hold the clients' neurons, which are matched"
    paper = "Yurochkin et al. 2019"
    traits = Traits(every_site=True, single_uploads=True, personal_model=False, numbers=False)
    columns = (Column("neurons", "hidden neurons of the matched network"),)
    plain = frozenset({"widths"})
    reads: ClassVar[type[Options]] = MatchingOptions
    options: MatchingOptions
    family = Point()
    widths: list[int] | None = None

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        if settings.aggregation_confidence != "off":
            raise SettingsError(
                "aggregation-confidence weighs what is averaged, and method=bnfed matches; leave it out."
            )

    def weights_of(self, network: nn.Module) -> Tensor:
        self.widths = widths_of(network)
        return flatten(network)

    def init(self, fresh: Fresh) -> State:
        weights = fresh()
        if self.widths is None:
            raise ValueError(
                "BNFed starts from the weights that its weights_of(network) gives: it must know the layers."
            )
        sent = {"w": weights[None].clone(), "widths": torch.tensor(self.widths).float()}
        return State(sent, facts={"widths": self.widths, "places": {}})

    def send(self, state: State, site: str) -> Mapping[str, Tensor]:
        """The matched network, and for a site that has been matched its own part of it."""
        own = self.part(state, site)
        return state.sent if own is None else {**state.sent, "own": own}

    def part(self, state: State, site: str) -> Tensor | None:
        if (places := state.facts["places"].get(site)) is None:
            return None
        layers = unpack(state.sent["w"][0].numpy(), state.sent["widths"].int().tolist())
        return torch.from_numpy(pack(part_of(layers, [np.array(one) for one in places])))[None]

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        """In its first round a client starts from weights of its own: they are a change of nothing."""
        own = self.part(state, site)
        widths = state.facts["widths"]
        size = sum((into + 1) * out for into, out in pairwise(widths))
        return {"w": Part("w", shape=(1, size)) if own is None else Part("w", own)}

    def step(self, state: State, came: Came) -> State:
        options, widths, past = self.options, state.facts["widths"], state.facts["places"]
        sites = [one.site for one in came.uploads]
        layers, found = match_networks(
            [unpack(one.parts["w"][0].double().numpy(), widths) for one in came.uploads],
            self.shares(came, widths[-1]),
            Beliefs(options.variance, options.prior, options.mass, options.cap),
            SWEEPS,
            np.random.default_rng(seed_of(self.seed, "matching", came.number)),
            [[np.array(one) for one in past[site]] if site in past else None for site in sites],
        )
        sent = {
            "w": torch.from_numpy(pack(layers)).float()[None],
            "widths": torch.tensor(widths_in(layers)).float(),
        }
        places = {site: [one.tolist() for one in own] for site, own in zip(sites, found, strict=True)}
        return State(sent, facts={"widths": widths, "places": places})

    def shares(self, came: Came, classes: int) -> Array:
        """(J, K): of each class's examples those at each client; ones where a site does not tell."""
        told = [came.sites[one.site].labels if one.site in came.sites else None for one in came.uploads]
        counts = np.array([labels or [1] * classes for labels in told], float)
        return np.ones_like(counts) if None in told else np.divide(counts, counts.sum(0).clip(min=1))

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        return {"neurons": int(state.sent["widths"][1:-1].sum())}, {}


METHOD = BNFed
