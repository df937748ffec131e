"""From the tallies in the clients' replies to the columns of rounds.csv and clients.csv.

A client measures up to two models on its own test data, `pm` (its personal one) and `gm` (the server's), each
with the Monte-Carlo predictive and as its posterior-mean network (`pm_point`, `gm_point`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import MetricRecord

from bayes_core.metrics import add, summarise
from strategies.exchange import Replies
from strategies.replies import BadReply, read_tally

Columns = dict[str, Any]  # of rounds.csv or clients.csv
MODELS = ("pm", "gm")


def measure(replies: Replies, examples: Mapping[str, int]) -> tuple[Columns, dict[str, Columns]]:
    """The metrics pooled over all clients' test examples, and each client's own; `examples` as named in hello.

    A client whose tallies are unusable is moved to the failures.
    """
    tallies: dict[str, dict[str, dict[str, list[float]]]] = {}
    for site, content in list(replies.content.items()):
        names = [f"{model}{kind}" for model in MODELS for kind in ("", "_point")]
        try:
            found = {
                name: tally
                for name in names
                if (tally := read_tally(content, name, examples[site])) is not None
            }
        except BadReply as error:
            replies.failures.setdefault(site, str(error))
            del replies.content[site]
            continue
        if found:
            tallies[site] = found
    pooled = _columns(list(tallies.values()))
    each = {site: _columns([found], examples=True) for site, found in tallies.items()}
    for site in each:
        each[site] |= _nonzero(replies.content[site].get("nonzero"))
    for column in ("pm_nonzero", "gm_nonzero"):
        ratios = [columns[column] for columns in each.values() if column in columns]
        if ratios:
            pooled[column] = round(sum(ratios) / len(ratios), 6)
    return pooled, each


def _nonzero(record: object) -> Columns:
    """The non-zero ratios of a sparse model; nonsense is left out."""
    ratios = dict(record) if isinstance(record, MetricRecord) else {}
    numbers = {model: ratio for model in MODELS if isinstance(ratio := ratios.get(model), float)}
    return {f"{model}_nonzero": round(ratio, 6) for model, ratio in numbers.items() if 0 <= ratio <= 1}


def _columns(tallies: Sequence[Mapping[str, dict[str, list[float]]]], examples: bool = False) -> Columns:
    columns: Columns = {}
    for model in MODELS:
        predictive = [found[model] for found in tallies if model in found]
        point = [found[f"{model}_point"] for found in tallies if f"{model}_point" in found]
        if predictive:
            total = add(predictive)
            columns |= {f"{model}_{name}": round(value, 6) for name, value in summarise(total).items()}
            if examples:
                columns["n_test"] = int(total["n"][0])
        if point:
            columns[f"{model}_point_accuracy"] = round(summarise(add(point))["accuracy"], 6)
    return columns
