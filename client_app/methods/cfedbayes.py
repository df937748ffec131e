"""cFedBayes, the client's half: of the K priors, a client takes the nearest to its own distribution."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from bayes_core import Gaussian, Recipe
from bayes_core.families import Family
from bayes_core.flat import buffers_of
from bayes_core.predict.predictive import outputs
from bayes_core.predict.predictor import Predictor
from client_app.method import Tensors, Trained, only, statistics_in
from client_app.methods.sfedbayes import SFedBayes, SparseOptions
from fedbayes.protocol.messages import BODY, CLUSTER
from fedbayes.protocol.settings import FamilyName, Options


class ClusterOptions(SparseOptions):
    family: FamilyName


class CFedBayes(SFedBayes):
    """pFedBayes within a cluster of one's own choice; in round 0 there is only the common start."""

    reads: ClassVar[type[Options]] = ClusterOptions
    options: ClusterOptions

    def make_family(self) -> Family:
        return Gaussian() if self.options.family == "gaussian" else super().make_family()

    def start(self, received: Tensors) -> dict[str, Tensor]:
        """A client that missed round 0 has no q: it takes the prior that fits its training data."""
        return super().start(received if "w" in received else only(received, f"u{self._best_fit(received)}"))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        if "w" in received:
            return super().train(state, received, server_round)
        nearest = self._nearest(state, received)
        base = f"u{nearest}"
        trained = super().train(state, only(received, base), server_round)
        bases = {**trained.bases, "w": base}
        return replace(trained, report=trained.report | {CLUSTER: nearest}, bases=bases)

    def recipe(self, server_round: int) -> Recipe:
        """In round 0, which finds the clusters, gates move as slowly as weights.

        At a rate of their own their first steps are mostly noise, and it drowns what the slabs say.
        """
        usual = super().recipe(server_round)
        return usual if server_round else replace(usual, lr_lambda=usual.lr_personal)

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        chosen = "w" if "w" in received else f"u{self._nearest(state, received)}"
        return super().models(state, only(received, chosen))

    def _nearest(self, state: Tensors, received: Tensors) -> int:
        """argmin_k KL(q ‖ u_k)."""
        q = self.family.constrain(state["q"])
        divergences = [float(self.family.kl(q, received[f"u{k}"])) for k in range(_priors(received))]
        return min(range(len(divergences)), key=divergences.__getitem__)

    def _best_fit(self, received: Tensors) -> int:
        """argmin_k of the training data's NLL under the mean network of u_k."""

        def nll(name: str) -> float:
            theta = self.family.centre(self.family.unconstrain(received[name]))
            buffers = {**buffers_of(self.network), **statistics_in(received, name)}
            return float(self.likelihood(outputs(network, theta, self.x, buffers), self.y))

        network = self.network_for(received)
        losses = [nll(f"u{k}") for k in range(_priors(received))]
        return int(torch.tensor(losses).argmin())


def _priors(received: Tensors) -> int:
    return sum(name != BODY for name in received)


METHOD = CFedBayes
