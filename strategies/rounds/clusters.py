"""Clusters of clients, a part that several methods share: who is in which, who moved, which are empty, how true.

As facts in a state: `members` (each site's latest cluster), `empty`, `changes` of the last round.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from bayes_core import Point
from bayes_core.server.aggregate import Mean
from fedbayes.protocol.messages import CLUSTER
from fedbayes.protocol.settings import Settings, SettingsError
from strategies.rounds.method import ServerMethod
from strategies.rounds.replies import BadReply
from strategies.rounds.roster import Site
from strategies.rounds.state import Came, Fresh, Part, State, Traits, Upload

USUAL = 2  # clusters where a method needs a number and none is given


def require_several(settings: Settings, clusters: int) -> None:
    """SettingsError where one cluster is asked for, which these methods do not have."""
    if clusters == 1:
        raise SettingsError(
            f"method={settings.method} takes clusters = a whole number of at least 2, or 0 for {USUAL}, not 1."
        )


def in_words(asked: int, found: int) -> str:
    """How many clusters there are, and whose choice that was."""
    how = f"{asked} asked for" if asked else "the usual number: none was given"
    return f"{found} cluster{'s' * (found > 1)} ({how})"


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
            tell("warning", message=f"Cluster {cluster} has no clients any more; it stays as it is.")
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


@dataclass(frozen=True)
class Groups:
    """What a server makes of a round's uploads."""

    labels: Mapping[str, int]  # the cluster of each site that sent something
    origins: Sequence[int]  # of each cluster: the one of before whose model it starts from
    lost: Collection[str] = ()  # sites that have no cluster any more
    facts: Mapping[str, Any] = field(default_factory=dict)  # further ones


class OwnCluster(ServerMethod):
    """A method whose server says who is in which cluster, by their uploads, and sends each site its cluster's model.

    All start from one model, u0. A site that has no cluster yet, when there are several, gets all models and chooses
    the one that fits its training data.
    """

    traits = Traits(single_uploads=True, personal_model=False, clusters=True)
    family = Point()

    def init(self, fresh: Fresh) -> State:
        return State({"u0": fresh()[None].clone()}, facts=Clusters().facts())

    def send(self, state: State, site: str) -> Mapping[str, Tensor]:
        own = self._known(state, site)
        return state.sent if own is None else {"w": state.sent[f"u{own}"]}

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        name = f"u{self.cluster_of(state, site, report)}"
        return {"w": Part(name, state.sent[name])}

    def cluster_of(self, state: State, site: str, report: Mapping[str, Any]) -> int:
        """Whose model a site has trained; BadReply where it should have chosen and did not."""
        own = self._known(state, site)
        return chosen_cluster(report, len(state.sent)) if own is None else own

    def _known(self, state: State, site: str) -> int | None:
        return 0 if len(state.sent) == 1 else state.facts["members"].get(site)

    @abstractmethod
    def group(self, state: State, came: Came) -> Groups:
        """Who belongs together."""

    def step(self, state: State, came: Came) -> State:
        """Every model goes towards the mean of its members' uploads; one without any stays as it is."""
        found, before = self.group(state, came), Clusters.of(state.facts)
        members = {site: cluster for site, cluster in before.members.items() if site not in found.lost}
        clusters = replace(before, members=members).after(found.labels, len(found.origins), self.tell)
        sent, statistics = {}, {}
        for label, origin in enumerate(found.origins):
            name, model = f"u{label}", state.sent[f"u{origin}"]
            uploads = [upload for upload in came.uploads if found.labels[upload.site] == label]
            sent[name] = self.towards(model, self._mean(uploads, model)) if uploads else model
            if f"u{origin}" in state.statistics:
                old = state.statistics[f"u{origin}"]
                statistics[name] = self._buffers(uploads, old) if uploads else old
        came.statistics.clear()  # they were added up by the clusters of before
        return State(sent, facts={**state.facts, **clusters.facts(), **found.facts}, statistics=statistics)

    def _mean(self, uploads: Sequence[Upload], near: Tensor) -> Tensor:
        total = self.aggregate_by(near)
        for upload in uploads:
            total.add(upload.parts["w"], upload.weight)
        return total.result()

    def _buffers(self, uploads: Sequence[Upload], near: Tensor) -> Tensor:
        total = Mean(near)
        for upload in uploads:
            total.add(upload.statistics["w"], upload.weight)
        return total.result()

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        clusters = Clusters.of(state.facts)
        return clusters.columns(len(state.sent), came.sites), clusters.of_sites(came)
