"""cFedBayes, the server's half: K priors, one for each kind of client.

Round 0 trains every client once from the common start and is not counted. The uploads are clustered by what each two
have learned in common (K given or chosen), and u_k starts as the mean of the uploads in cluster k. In every later round
a client gets all K priors, takes the nearest, and says which; each u_k goes (1−β)-extrapolated towards the mean of
those who chose it, and one that nobody chose stays as it is.

Different from the paper: it divides by |S_k| while summing an indicator; the mean over members is meant. The
family is open, so sparse and clustered together is `family = "spike-slab"`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayes_core import Gaussian, symmetric_kl_matrix
from bayes_core.families import Family
from bayes_core.server.clustering import choose_k_with_evidence, clusters_asked_for, symmetric_kl_to
from bayes_core.server.moves import Layers, compare_learned, layers_of
from fedbayes.protocol.messages import BODY
from fedbayes.protocol.settings import FamilyName, Natural, Options
from fedbayes.protocol.streams import seed_of
from strategies.rounds.clusters import Clusters, chosen_cluster
from strategies.rounds.state import Came, Fresh, Part, State, Traits
from strategies.sfedbayes import SFedBayes, SparseOptions


class ClusterOptions(SparseOptions):
    family: FamilyName
    clusters: Natural


class CFedBayes(SFedBayes):
    """K priors u0 … u(K−1); before round 0 the common start w."""

    title = "cFedBayes"
    idea = "clients of one kind share a prior, and each learns a distribution of its own"
    traits = Traits(clusters=True)
    openings = 1
    reads: ClassVar[type[Options]] = ClusterOptions
    options: ClusterOptions
    layers: Layers = ()  # of the network; round 0 of somebody's own Flower app may go without

    def make_family(self) -> Family:
        return Gaussian() if self.options.family == "gaussian" else super().make_family()

    # ------------------------------------------------------------------ round 0

    def weights_of(self, network: nn.Module) -> Tensor:
        weights = super().weights_of(network)
        self.layers = layers_of(self.distributed(network).values())
        return weights

    def init(self, fresh: Fresh) -> State:
        state = super().init(fresh)
        return replace(state, facts={"layers": self.layers})

    def holds(self, number: int) -> bool:
        """The uploads of round 0 are compared with each other."""
        return number == 0

    def find_clusters(self, state: State, came: Came) -> State:
        """Cluster the first uploads; sites that were not there choose for themselves when they come."""
        sites = [upload.site for upload in came.uploads]
        uploads = [upload.parts["w"] for upload in came.uploads]
        psi = symmetric_kl_matrix(torch.stack(uploads), self.family)
        start = symmetric_kl_to(state.sent["w"], uploads, self.family)
        layers = state.facts.get("layers", ())
        learned = compare_learned(uploads, state.sent["w"], self.family, layers) if layers else (psi, start)
        choice = choose_k_with_evidence(*learned, sites)
        found, asked = choice.kinds, min(self.options.clusters, len(sites))
        labels = (
            clusters_asked_for(psi, asked, seed_of(self.seed, "clusters"), start) if asked else found.labels
        )
        k = max(labels) + 1
        sums = [self.sum_for(state, "w") for _ in range(k)]
        for upload, label in zip(came.uploads, labels, strict=True):
            sums[label].add(upload.parts["w"], upload.weight)
        body = self.body_of(state, came)
        came.documents["clusters"] = {
            "sites": sites,
            "labels": labels,
            "k": k,
            "asked": self.options.clusters,
            "suggested": choice.k,
            "eigenvalues": choice.eigenvalues,
            "gap": choice.gap,
            "rest": choice.rest,
            "psi": psi.tolist(),
            "start": start.tolist(),
            "sure": found.sure,
            "why": found.why,
            "odd": [sites[client] for client in found.odd],
        }
        sizes = ", ".join(str(labels.count(cluster)) for cluster in range(k))
        how = "asked for" if asked else "chosen" if found.sure else "chosen, but not sure"
        told = f"{k} cluster{'s' * (k > 1)} ({how}) of {sizes} clients."
        self.tell("clusters", k=k, message=told if asked else f"{told} {found.why}")
        priors = {
            f"u{label}": self.family.after_extrapolation(total.result()) for label, total in enumerate(sums)
        }
        clusters = Clusters(dict(zip(sites, labels, strict=True)))
        statistics = self.statistics_of(state, came, labels)
        return State(priors | body, facts=clusters.facts(), statistics=statistics)

    def body_of(self, state: State, came: Came) -> dict[str, Tensor]:
        """The plain weights after round 0, of all clients together, where there are such."""
        if BODY not in state.sent:
            return {}
        total = self.sum_for(state, BODY)
        for upload in came.uploads:
            total.add(upload.parts[BODY], upload.weight)
        return {BODY: total.result()}

    def statistics_of(self, state: State, came: Came, labels: list[int]) -> dict[str, Tensor]:
        """The mean of the members' buffers in each cluster, where the network has such."""
        if "w" not in state.statistics:
            return {}
        means = {f"u{label}": self.buffers_by(state.statistics["w"]) for label in labels}
        for upload, label in zip(came.uploads, labels, strict=True):
            means[f"u{label}"].add(upload.statistics["w"], upload.weight)
        return {name: total.result() for name, total in means.items()}

    # ------------------------------------------------------------------ the rounds

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        if "w" in state.sent:
            return super().expects(state, site, report)
        chosen = f"u{chosen_cluster(report, priors_in(state))}"
        return {"w": Part(chosen, state.sent[chosen]), **self.plain_parts(state)}

    def step(self, state: State, came: Came) -> State:
        if "w" in state.sent:
            return self.find_clusters(state, came)
        chosen = {upload.site: chosen_cluster(upload.report, priors_in(state)) for upload in came.uploads}
        clusters = Clusters.of(state.facts).after(chosen, priors_in(state), self.tell)
        return replace(super().step(state, came), facts=clusters.facts())

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        clusters = Clusters.of(state.facts)
        return clusters.columns(priors_in(state), came.sites), clusters.of_sites(came)


def priors_in(state: State) -> int:
    """How many clusters there are; plain weights, where there are such, are one for all of them."""
    return sum(name != BODY for name in state.sent)


METHOD = CFedBayes
