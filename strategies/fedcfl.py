"""FedCFL, the server's half: clients are one cluster, and a cluster splits when its members pull apart.

Sattler, Müller, Samek: "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints", 2021.

In each cluster with the updates ΔW_i = W_i − model: where they cancel (r = ‖mean ΔW‖ / max ‖ΔW_i‖ is small, yet nobody
stands still) the members are cut in two by complete linkage on 1 − cos(ΔW_i, ΔW_j). The cut is made where every client
has a relative in its own part whose cosine is above that of anybody in the other part by more than `split-gap`. Then
each part's model moves by the mean of its own ΔW.

Different from the paper: its bounds ε₁ and ε₂ on the two norms are absolute and fit one network and one learning rate,
so here their ratio is bounded; and since r falls for clients of one kind too, when only noise is left, the gap decides.
Its bound is above what the best cut of clients of one kind has in the first rounds in which r is small, as measured
(docs/methods.md); in later ones, when every client learns its own last examples by heart, such clients part as well, so
that a cluster which did not split by then stays. A client that comes later, or was not there when its cluster split,
takes the model that fits its training data.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayes_core.server.kinds import in_order
from fedbayes.protocol.columns import Column
from fedbayes.protocol.settings import Count, NonNegative, Options, Settings, SettingsError, takes
from strategies.rounds.clusters import Groups, OwnCluster
from strategies.rounds.method import StepOptions
from strategies.rounds.state import Came, State, Upload

FEWEST = 3  # clients in a cluster that may split …
WINDOW = 5  # … in the first so many rounds in which its ratio is low
TINY = 1e-300  # instead of a norm of 0
NOBODY = -9.0  # below every cosine
COSINES = "a number from 0 to 2, the largest difference of two cosines"


class SplitOptions(StepOptions):
    split_ratio: NonNegative = takes("a number of at least 0", alias="fedcfl.split-ratio", ge=0)
    split_gap: float = takes(COSINES, alias="fedcfl.split-gap", ge=0, le=2)
    split_from: Count = takes("a whole number of at least 1", alias="fedcfl.split-from", ge=1)


@dataclass(frozen=True)
class Cut:
    """The best bipartition of a cluster, and how good it is."""

    labels: list[int]  # 0 or 1 for each client
    ratio: float  # ‖mean ΔW‖ / max ‖ΔW_i‖, of all
    gap: float  # the least, over clients with company: its largest cosine in its own part − that in the other


class FedCFL(OwnCluster):
    """A tree of clusters, of which the leaves are kept."""

    title = "FedCFL"
    idea = "one network for all clients, split in two wherever their updates point apart"
    paper = "Sattler et al. 2021"
    traits = replace(OwnCluster.traits, every_site=True)
    columns = (
        Column("split_ratio", "‖mean update‖ / largest, of the cluster with the widest gap"),
        Column("split_gap", "how much nearer every client is to its own part of the best cut, in cosines"),
    )
    reads: ClassVar[type[Options]] = SplitOptions
    options: SplitOptions

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        if settings.aggregation_confidence not in ("off", "weight"):
            raise SettingsError(
                f"method={settings.method} compares the updates of all sites; aggregation-confidence="
                f"{settings.aggregation_confidence} would leave some of them out."
            )

    def group(self, state: State, came: Came) -> Groups:
        clusters: dict[int, list[Upload]] = defaultdict(list)
        for upload in came.uploads:
            clusters[self.cluster_of(state, upload.site, upload.report)].append(upload)
        labels = {one.site: cluster for cluster, uploads in clusters.items() for one in uploads}
        origins = list(range(len(state.sent)))
        low = dict(state.facts.get("low", {}))  # cluster → rounds in which its ratio was low
        cuts: list[Cut] = []
        lost: set[str] = set()
        for cluster, uploads in sorted(clusters.items()):
            if len(uploads) < FEWEST:
                continue
            cut = best_cut(torch.stack([one.parts["w"][0] for one in uploads]), state.sent[f"u{cluster}"][0])
            cuts.append(cut)
            if came.number < self.options.split_from or cut.ratio >= self.options.split_ratio:
                continue
            name = str(cluster)  # as JSON has keys
            low[name] = low.get(name, 0) + 1
            if low[name] <= WINDOW and cut.gap > self.options.split_gap:
                leaving = [one.site for one, side in zip(uploads, cut.labels, strict=True) if side]
                labels |= dict.fromkeys(leaving, len(origins))
                self._tell(came.number, cluster, len(origins), len(uploads) - len(leaving), len(leaving), cut)
                origins.append(cluster)
                lost |= {site for site, of in state.facts["members"].items() if of == cluster} - labels.keys()
                del low[name]  # both parts are judged anew
        widest = max(cuts, key=lambda cut: cut.gap, default=None)
        seen = {"ratio": None, "gap": None} if widest is None else {"ratio": widest.ratio, "gap": widest.gap}
        return Groups(labels, origins, lost, {**seen, "low": low})

    def _tell(self, number: int, old: int, new: int, stay: int, leave: int, cut: Cut) -> None:
        self.tell(
            "clusters",
            k=new + 1,
            message=f"Round {number}: cluster {old} splits; {stay} clients stay, {leave} are cluster {new} (ratio "
            f"{cut.ratio:.2f}, gap {cut.gap:.2f}).",
        )

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        columns, of_sites = super().describe(state, came)
        said = {
            f"split_{key}": round(state.facts[key], 6)
            for key in ("ratio", "gap")
            if state.facts[key] is not None
        }
        return columns | said, of_sites


def best_cut(uploads: Tensor, model: Tensor) -> Cut:
    """Complete linkage of the updates (n, T) of at least three clients."""
    from sklearn.cluster import AgglomerativeClustering  # slow to import

    deltas = uploads.double() - model.double()
    norms = deltas.norm(dim=1)
    ratio = float(deltas.mean(0).norm() / norms.max().clamp_min(TINY))
    unit = deltas / norms[:, None].clamp_min(TINY)
    cosines = unit @ unit.T
    found = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit((1 - cosines).numpy())
    labels = torch.tensor(in_order(found.labels_.tolist()))
    same = labels[:, None] == labels
    own = cosines.fill_diagonal_(NOBODY).masked_fill(~same, NOBODY).amax(1)
    other = cosines.masked_fill(same, NOBODY).amax(1)
    return Cut(labels.tolist(), ratio, float((own - other)[own > NOBODY].min()))


METHOD = FedCFL
