"""From the tallies in the clients' replies to the columns of rounds.csv and clients.csv.

A client measures up to two models on its own test data, `pm` (its personal one) and `gm` (the server's), each
with the Monte-Carlo predictive, as its posterior-mean network (`pm_point`, `gm_point`) and, where the run asks for
it, after temperature scaling (`pm_scaled`, `gm_scaled`); and the predictive on its validation data, where it has such
(`pm_val`, `gm_val`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from bayes_core.predict.metrics import TALLY_LENGTHS, add, summarise
from fedbayes.protocol.columns import BY_SITE, METRICS, MODELS, VALIDATION, Metric
from strategies.rounds.exchange import Replies
from strategies.rounds.replies import BadReply, Reply, read_tally, unforeseen

Columns = dict[str, Any]  # of rounds.csv or clients.csv
KINDS = list(
    dict.fromkeys(metric.kind for metric in METRICS if metric.kind is not None)
)  # of a model's tally
AVERAGED = [metric for metric in METRICS if metric.bounds is not None]  # single numbers of a model


@dataclass
class Row:
    """One round as the CSV files tell it, for the federation and for each site."""

    columns: Columns
    clients: dict[str, Columns] = field(default_factory=dict)
    evidence: dict[str, Any] | None = None  # of an evaluated round: what only the report needs

    def add_measures(self, pooled: Columns, each: Mapping[str, Columns]) -> None:
        self.columns |= pooled
        for site, columns in each.items():
            self.clients[site] = {"status": "idle"} | self.clients.get(site, {}) | columns

    def statuses(self) -> dict[str, str]:
        """Who was asked, and what became of it."""
        return {site: str(cells["status"]) for site, cells in self.clients.items() if "status" in cells}

    def client_rows(self) -> list[Columns]:
        number = self.columns["round"]
        return [{"round": number, "site": site, **self.clients[site]} for site in sorted(self.clients)]


def measure(
    replies: Replies[Reply],
    examples: Mapping[str, int],
    lengths: Mapping[str, int] = TALLY_LENGTHS,
    held: Mapping[str, int] = MappingProxyType({}),
    apart: Collection[str] = (),
    held_apart: Collection[str] = (),
) -> tuple[Columns, dict[str, Columns]]:
    """The metrics pooled over all clients' test examples with the means over clients, and each client's own.

    `examples` and `held`, those for the test and for validation, as named in hello. The figures of sites that are
    `apart` are their own and one of the mean over clients, but not pooled; `held_apart`: those of validation data.

    A client whose tallies are unusable is moved to the failures.
    """
    tallies: dict[str, dict[str, dict[str, list[float]]]] = {}
    for site, content in list(replies.content.items()):
        sizes = {kind: held.get(site, 0) if kind == VALIDATION else examples[site] for kind in KINDS}
        try:
            found = {
                f"{model}{kind}": tally
                for model in MODELS
                for kind, size in sizes.items()
                if (size or kind != VALIDATION)
                and (tally := read_tally(content, f"{model}{kind}", size, lengths)) is not None
            }
        except Exception as error:
            reason = str(error) if isinstance(error, BadReply) else unforeseen(error)
            replies.failures.setdefault(site, reason)
            del replies.content[site]
            continue
        if found:
            tallies[site] = found
    pooled = _columns(
        [
            {
                kind: tally
                for kind, tally in found.items()
                if site not in (held_apart if kind.endswith(VALIDATION) else apart)
            }
            for site, found in tallies.items()
        ]
    )
    each = {site: _columns([found], examples=True) for site, found in tallies.items()}
    for model in MODELS:
        for key in BY_SITE:
            told = [columns[f"{model}_{key}"] for columns in each.values() if f"{model}_{key}" in columns]
            if told:
                pooled[f"{model}_sites_{key}"] = round(sum(told) / len(told), 6)
    for metric in AVERAGED:
        for site in each:
            each[site] |= _numbers(metric, replies.content[site].measures.get(metric.key, {}))
        for column in (f"{model}_{metric.key}" for model in MODELS):
            told = [
                columns
                for site, columns in each.items()
                if column in columns and not (metric.pooled and site in apart)
            ]
            weights = [columns.get("n_test", 0) if metric.pooled else 1 for columns in told]
            if sum(weights):
                total = sum(w * columns[column] for w, columns in zip(weights, told, strict=True))
                pooled[column] = round(total / sum(weights), 6)
    return pooled, each


def _numbers(metric: Metric, said: Mapping[str, Any]) -> Columns:
    """One number for each model, such as a sparse one's non-zero ratio; nonsense is left out."""
    assert metric.bounds is not None  # of a single number
    low, high = metric.bounds
    numbers = {model: number for model in MODELS if isinstance(number := said.get(model), float)}
    return {
        f"{model}_{metric.key}": round(number, 6)
        for model, number in numbers.items()
        if low <= number <= high
    }


def _columns(tallies: Sequence[Mapping[str, dict[str, list[float]]]], examples: bool = False) -> Columns:
    columns: Columns = {}
    for model in MODELS:
        for kind in KINDS:
            found = [site[model + kind] for site in tallies if model + kind in site]
            if not found:
                continue
            total = add(found)
            summary = summarise(total)
            columns |= {
                f"{model}_{metric.key}": round(summary[metric.source], 6)
                for metric in METRICS
                if metric.kind == kind and metric.source in summary
            }
            if examples and not kind:
                columns["n_test"] = int(total["n"][0])
    return columns
