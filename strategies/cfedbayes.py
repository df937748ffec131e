"""cFedBayes, the server's half: K priors, one for each kind of client, found by spectral clustering.

Round 0 trains every client once from the common start and is not counted. The uploads' symmetric KL matrix is
clustered (K given, or chosen from the eigenvalues of the Laplacian), and u_k starts as the mean of the uploads
in cluster k. In every later round a client gets all K priors, takes the nearest, and says which; each u_k goes
(1−β)-extrapolated towards the mean of those who chose it, and one that nobody chose stays as it is.

Different from the paper: it divides by |S_k| while summing an indicator; the mean over members is meant. The
family is open, so sparse and clustered together is `family = "spike-slab"`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.serverapp import Grid
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from bayes_core import spectral_clusters, symmetric_kl_matrix
from bayes_core.server.clustering import choose_k_with_evidence
from fedbayes.protocol.streams import seed_of
from strategies.pfedbayes import PFedBayes
from strategies.rounds.records import Journal, Row, Upload
from strategies.rounds.replies import BadReply


class CFedBayes(PFedBayes):
    """K priors u0 … u(K−1); before round 0 the common start w."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.members: dict[str, int] = {}  # each site's latest cluster
        self.first: dict[str, Tensor] = {}  # the uploads of round 0, which are compared with each other
        self.changes = 0
        self.empty: set[int] = set()

    def family_name(self) -> str:
        return self.settings.family

    # ------------------------------------------------------------------ round 0

    def prepare(self, grid: Grid, journal: Journal) -> Row:
        """The exchange that trains every client once, and the clusters that it shows."""
        row = self._train(grid, 0, due=False)
        journal.keep("clusters", self.evidence)
        self.checkpoint(journal, row, closed=False)
        return row

    def sample(self, server_round: int) -> list[str]:
        """Round 0 asks everybody."""
        return self.roster.online if server_round == 0 else super().sample(server_round)

    def _found(self) -> None:
        """Cluster the first uploads; sites that were not there choose for themselves when they come."""
        sites = [upload.site for upload in self.uploads]
        psi = symmetric_kl_matrix(torch.stack([self.first[site] for site in sites]), self.family)
        choice = choose_k_with_evidence(psi)
        k = min(self.settings.clusters or choice.k, len(sites))
        labels = spectral_clusters(psi, k, seed_of(self.settings.seed, "clusters"))
        k = max(labels) + 1
        self.members = dict(zip(sites, labels, strict=True))
        self.tensors = {f"u{cluster}": self.tensors["w"] for cluster in range(k)}
        for upload in self.uploads:
            report = {**upload.report, "cluster": self.members[upload.site]}
            super().add(replace(upload, report=report), self.first.pop(upload.site))
        for base, aggregate in self.aggregates.items():
            self.tensors[base] = self.family.after_extrapolation(aggregate.result())
        self.evidence = {
            "sites": sites,
            "labels": labels,
            "k": k,
            "asked": self.settings.clusters,
            "suggested": choice.k,
            "eigenvalues": choice.eigenvalues,
            "gap": choice.gap,
            "rest": choice.rest,
            "psi": psi.tolist(),
        }
        sizes = ", ".join(str(labels.count(cluster)) for cluster in range(k))
        how = "chosen" if self.settings.clusters == 0 else "asked for"
        self.tell("clusters", k=k, message=f"{k} cluster{'s' * (k > 1)} ({how}) of {sizes} clients.")

    # ------------------------------------------------------------------ the rounds

    @property
    def clusters(self) -> int:
        return len(self.tensors) if "w" not in self.tensors else 0

    def base_of(self, report: Mapping[str, Any]) -> str:
        if not self.clusters:
            return "w"
        if report.get("cluster") not in range(self.clusters):
            raise BadReply(f"cluster {report.get('cluster')!r} instead of 0 … {self.clusters - 1}")
        return f"u{int(report['cluster'])}"

    def share_left_out(self) -> float:
        """In round 0 everybody is compared with everybody."""
        return super().share_left_out() if self.clusters else 0.0

    def add(self, upload: Upload, w: Tensor) -> None:
        if self.clusters:
            super().add(upload, w)
        else:
            self.first[upload.site] = w

    def step(self) -> None:
        if not self.clusters:
            self._found()
            return
        before = dict(self.members)
        self.members |= {upload.site: int(upload.report["cluster"]) for upload in self.uploads}
        self.changes = sum(before.get(site, cluster) != cluster for site, cluster in self.members.items())
        sizes = Counter(self.members.values())
        empty = {cluster for cluster in range(self.clusters) if not sizes[cluster]}
        for cluster in sorted(empty - self.empty):
            self.tell("warning", message=f"Cluster {cluster} has no clients any more; it keeps its prior.")
        self.empty = empty
        super().step()

    def describe(self, row: Row) -> None:
        row.columns["clusters"] = self.clusters
        row.columns["cluster_changes"] = self.changes
        for upload in self.uploads:
            row.clients[upload.site]["cluster"] = self.members[upload.site]
        sites = self.roster.sites
        groups = {site: sites[site].group for site in self.members if site in sites}
        known = [site for site, group in groups.items() if group is not None]
        if known:
            score = adjusted_rand_score(
                [groups[site] for site in known], [self.members[site] for site in known]
            )
            row.columns["adjusted_rand"] = round(float(score), 6)

    def memory(self) -> dict[str, Any]:
        return {"members": self.members, "empty": sorted(self.empty)}

    def remember(self, memory: Mapping[str, Any]) -> None:
        self.members = dict(memory["members"])
        self.empty = set(memory["empty"])


METHOD = CFedBayes
