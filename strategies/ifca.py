"""IFCA, the server's half: K models from K different starts; every client chooses the one that fits it.

Ghosh, Chung, Yin, Ramchandran: "An Efficient Framework for Clustered Federated Learning", 2020; the variant that
averages models. u_k becomes the mean of what those who chose it have made of it; one that nobody chose stays.

Where no random start suits some of the clients, all of them end in one cluster. So, different from the paper: where a
cluster is empty after three rounds, the method starts again from other seeds, `ifca.restarts` times at most and in the
first half of the run; if every start leaves one empty, the one of the lowest training loss goes on. Each restart is
told and counted, and its rounds are rounds of the run. `ifca.restarts=0` is the paper's.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from bayes_core import Point
from fedbayes.protocol.columns import Column
from fedbayes.protocol.messages import STATISTICS
from fedbayes.protocol.settings import Count, Natural, Options, Settings, takes
from strategies.rounds.clusters import USUAL, Clusters, chosen_cluster, in_words, require_several
from strategies.rounds.method import ServerMethod, StepOptions
from strategies.rounds.replies import BadReply
from strategies.rounds.state import Came, Fresh, Part, State, Traits

ROUNDS = 3  # of all sites, or as many uploads where sites are sampled, before a start is judged
FIT = "fit"  # in a report: the mean loss of all training data under the model that a client has chosen


class StartOptions(StepOptions):
    clusters: Natural
    rounds: Count
    restarts: Natural = takes("a whole number of at least 0", alias="ifca.restarts", ge=0, le=100)


class IFCA(ServerMethod):
    """K models; until a start has proved good, further starts are kept at the server."""

    title = "IFCA"
    idea = "several networks, and every client trains the one that fits its data"
    paper = "Ghosh et al. 2020"
    traits = Traits(personal_model=False, clusters=True)
    family = Point()
    columns = (Column("restarts", "restarts from other seeds"),)
    reads: ClassVar[type[Options]] = StartOptions
    options: StartOptions

    @classmethod
    def check(cls, settings: Settings) -> None:
        super().check(settings)
        require_several(settings, StartOptions.parse(settings.as_config()).clusters)

    def init(self, fresh: Fresh) -> State:
        k = self.options.clusters or USUAL
        self.tell(
            "clusters", k=k, message=f"{in_words(self.options.clusters, k)}, each with a start of its own."
        )
        starts = [
            {f"u{label}": fresh("start", number, label)[None].clone() for label in range(k)}
            for number in range(self.options.restarts + 1)
        ]
        kept = {
            f"{number}.{name}": v
            for number, start in enumerate(starts)
            if number
            for name, v in start.items()
        }
        facts = {**Clusters().facts(), "tries": [], "restarts": 0, "uploads": 0}
        facts["settled"] = not self.options.restarts
        return State(starts[0], kept, facts)

    def expects(self, state: State, site: str, report: Mapping[str, Any]) -> Mapping[str, Part]:
        name, fit = f"u{chosen_cluster(report, len(state.sent))}", report.get(FIT)
        if not isinstance(fit, float) or not abs(fit) < float("inf"):
            raise BadReply(f"the training loss {fit!r} instead of a number")
        return {"w": Part(name, state.sent[name])}

    def step(self, state: State, came: Came) -> State:
        facts, k = state.facts, len(state.sent)
        chosen = {upload.site: chosen_cluster(upload.report, k) for upload in came.uploads}
        before = Clusters.of(facts) if facts["uploads"] else Clusters(empty=tuple(range(k)))
        clusters = before.after(chosen, k, self.tell if facts["settled"] else _quiet)
        uploads = facts["uploads"] + len(came.uploads)
        kept = dict(state.kept)
        if state.statistics and not facts["settled"]:  # as every start has them
            kept.setdefault(f"first{STATISTICS}", state.statistics["u0"].clone())
        facts = {**facts, **clusters.facts(), "uploads": uploads}
        after = replace(super().step(state, came), kept=kept, facts=facts)
        sites = len(came.sites) or len(clusters.members)
        if facts["settled"] or uploads < ROUNDS * sites:
            return after
        if not clusters.empty or k > sites:
            return replace(after, kept={}, facts={**after.facts, "settled": True})
        return self._again(after, came)

    def _again(self, state: State, came: Came) -> State:
        """On from the next start; after the last one, with the best."""
        tries = [*state.facts["tries"], statistics.fmean(upload.report[FIT] for upload in came.uploads)]
        best, last = min(range(len(tries)), key=tries.__getitem__), len(tries) - 1
        buffers = {**state.statistics, **{name: total.result() for name, total in came.statistics.items()}}
        came.statistics.clear()  # they go with models that are given up
        kept = dict(state.kept)
        if best == last:
            kept |= {f"best.{name}": v for name, v in state.sent.items()}
            kept |= {f"best.{name}{STATISTICS}": v for name, v in buffers.items()}
        late = 2 * came.number > self.options.rounds
        facts = {
            **state.facts,
            "tries": tries,
            "uploads": 0,
            "settled": late or last == self.options.restarts,
        }
        if facts["settled"]:
            said = f"{len(tries)} start{'s' * (last > 0)} left a cluster without clients"
            told = f"{said}; the one of the lowest training loss goes on ({tries[best]:.4g})."
            self.tell("clusters", k=len(state.sent), message=told)
            sent = {name: kept[f"best.{name}"] for name in state.sent}
            buffers = {name: kept[f"best.{name}{STATISTICS}"] for name in buffers}
            return State(sent, facts=facts, statistics=buffers)
        self.tell(
            "clusters",
            k=len(state.sent),
            message=f"Round {came.number}: a cluster is left without clients (training loss {tries[-1]:.4g}); restart "
            f"{len(tries)} of at most {self.options.restarts} from other seeds.",
        )
        facts["restarts"] = len(tries)
        sent = {name: kept.pop(f"{len(tries)}.{name}") for name in state.sent}
        return State(sent, kept, facts, {name: kept[f"first{STATISTICS}"].clone() for name in buffers})

    def describe(self, state: State, came: Came) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        clusters = Clusters.of(state.facts)
        columns = clusters.columns(len(state.sent), came.sites) | {"restarts": state.facts["restarts"]}
        return columns, clusters.of_sites(came)


def _quiet(event: str, **said: Any) -> None:
    """While starts are tried, an empty cluster is no news: the restart is."""


METHOD = IFCA
