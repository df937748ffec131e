"""Clusters of clients, a part that several methods share: who is in which, who moved, which are empty, how true.

As facts in a state: `members` (each site's latest cluster), `empty`, `changes` of the last round.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedbayes.protocol.messages import CLUSTER
from strategies.rounds.replies import BadReply
from strategies.rounds.roster import Site
from strategies.rounds.state import Came


@dataclass(frozen=True)
class Clusters:
    members: Mapping[str, int] = field(default_factory=dict)
    empty: tuple[int, ...] = ()
    changes: int = 0

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "Clusters":
        return cls(dict(facts["members"]), tuple(facts["empty"]), int(facts.get("changes", 0)))

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "members": dict(self.members), "empty": list(self.empty)}

    def after(self, chosen: Mapping[str, int], k: int, tell: Callable[..., None]) -> "Clusters":
        """After a round in which these sites have chosen among k clusters; a cluster that empties is told once."""
        members = {**self.members, **chosen}
        changes = sum(self.members.get(site, cluster) != cluster for site, cluster in members.items())
        sizes = Counter(members.values())
        empty = tuple(cluster for cluster in range(k) if not sizes[cluster])
        for cluster in sorted(set(empty) - set(self.empty)):
            tell("warning", message=f"Cluster {cluster} has no clients any more; it keeps its prior.")
        return Clusters(members, empty, changes)

    def columns(self, k: int, sites: Mapping[str, Site]) -> dict[str, Any]:
        """Of rounds.csv. The adjusted Rand index compares with the sites' true groups, where they are known."""
        from sklearn.metrics import adjusted_rand_score  # slow to import

        columns: dict[str, Any] = {"clusters": k, "cluster_changes": self.changes}
        groups = {site: sites[site].group for site in self.members if site in sites}
        known = [site for site, group in groups.items() if group is not None]
        if known:
            score = adjusted_rand_score(
                [groups[site] for site in known], [self.members[site] for site in known]
            )
            columns["adjusted_rand"] = round(float(score), 6)
        return columns

    def of_sites(self, came: Came) -> dict[str, dict[str, Any]]:
        """Of clients.csv."""
        return {upload.site: {CLUSTER: self.members[upload.site]} for upload in came.uploads}


def chosen_cluster(report: Mapping[str, Any], k: int) -> int:
    """The cluster that a client says it has chosen, or BadReply."""
    if report.get(CLUSTER) not in range(k):
        raise BadReply(f"cluster {report.get(CLUSTER)!r} instead of 0 … {k - 1}")
    return int(report[CLUSTER])
