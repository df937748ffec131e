"""What an evaluation leaves for the report: pooled tallies, and binned counts of certainty and of weights."""

import statistics
from collections.abc import Collection, Mapping
from typing import Any

import torch

from bayes_core.predict.histograms import ENTROPY_BINS, LAMBDA_BINS, SIGMA_BINS, SURE_BINS, VALUE_BINS
from bayes_core.predict.metrics import TALLY_LENGTHS, add
from fedbayes.protocol.columns import MODELS
from fedbayes.protocol.messages import COUNTS
from strategies.rounds.by_class import by_class
from strategies.rounds.exchange import Replies
from strategies.rounds.replies import Reply, read_tally
from strategies.rounds.roster import Site

Counts = list[float]


def evidence(
    replies: Replies[Reply],
    sites: Mapping[str, Site],
    parameters: int,
    lengths: Mapping[str, int] = TALLY_LENGTHS,
    apart: Collection[str] = (),
) -> dict[str, Any]:
    """JSON: `pm`, `gm` (tallies of all clients together), `sites` (each one's counts), `weights` (all personal), and of
    each model `answers` (right and wrong, by how sure they are) and `values` (intervals by predicted number).

    To be called after `measure`, which has moved the sites with unusable tallies to the failures. Counts that
    do not add up to the site's test examples or to the model's `parameters` are left out; of sites that are `apart`
    nothing is pooled but weights.
    """
    tallies: dict[str, list[dict[str, list[float]]]] = {model: [] for model in MODELS}
    told: dict[str, dict[str, Any]] = {}
    excess: dict[str, dict[str, float]] = {}  # how much surer than right each site's models are
    binned: dict[str, dict[str, list[Counts]]] = {"answers": {}, "values": {}}
    weights: dict[str, list[Counts]] = {"sigma": [], "lambda": [], "nonzero": []}
    for name, content in replies.content.items():
        site, counts = sites[name], content.measures.get(COUNTS, {})
        for model in MODELS:
            if (tally := read_tally(content, model, site.n_test * site.decisions, lengths)) is not None:
                if name not in apart:
                    tallies[model].append(tally)
                if "bin_n" in tally:
                    gap = sum(tally["bin_confidence"]) - tally["correct"][0]
                    excess.setdefault(name, {})[f"{model}_excess"] = round(gap / tally["n"][0], 6)
            for kind, good in (("answers", _answers), ("values", _values)):
                numbers = good(counts.get(f"{model}_{kind}"), site.n_test * site.decisions)
                if numbers is not None and name not in apart:
                    binned[kind].setdefault(model, []).append(numbers)
        told[name] = _of_site(site, counts) | excess.get(name, {})
        for kind, bins in (("sigma", SIGMA_BINS), ("lambda", LAMBDA_BINS)):
            if (numbers := _counts(counts.get(kind), bins, parameters)) is not None:
                weights[kind].append(numbers)
        if (ratios := _numbers(counts.get("nonzero"))) is not None and max(ratios, default=2) <= 1:
            weights["nonzero"].append(ratios)
    pooled = {model: add(several) for model, several in tallies.items() if several}
    return {
        **pooled,
        "classes": by_class(replies, sites, apart),
        **{kind: {model: _pool(kind, some) for model, some in of.items()} for kind, of in binned.items()},
        "sites": told,
        "weights": {key: _pool(key, some) for key, some in weights.items() if some},
    }


def _of_site(site: Site, counts: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for model in MODELS:
        entropy = _counts(counts.get(f"{model}_entropy"), ENTROPY_BINS, site.n_test * site.decisions)
        if entropy is not None:
            told[f"{model}_entropy"] = entropy
    if site.labels is not None:
        told["labels"] = list(site.labels)
    if site.group is not None:
        told["group"] = site.group
    return told


def _numbers(given: Any) -> Counts | None:
    """A list of finite numbers of at least 0."""
    if not isinstance(given, list):
        return None
    values = torch.tensor(given, dtype=torch.float64)
    return given if bool((values.isfinite() & (values >= 0)).all()) else None


def _counts(given: Any, bins: int, total: int) -> Counts | None:
    numbers = _numbers(given)
    return numbers if numbers is not None and len(numbers) == bins and sum(numbers) == total else None


def _answers(given: Any, total: int) -> Counts | None:
    """How sure the wrong and the right answers are."""
    return _counts(given, 2 * SURE_BINS, total)


def _values(given: Any, total: int) -> Counts | None:
    """By predicted number: how many, how many of them in their intervals, and how wide these are in sum."""
    numbers = _numbers(given)
    if numbers is None or len(numbers) != 3 * VALUE_BINS:
        return None
    n, within = numbers[:VALUE_BINS], numbers[VALUE_BINS : 2 * VALUE_BINS]
    possible = sum(n) == total and all(held <= of for held, of in zip(within, n, strict=True))
    return numbers if possible else None


def _pool(kind: str, several: list[Counts]) -> Counts:
    """The sum of counts, the mean of ratios; of sites that count layers in another way, the majority."""
    length = statistics.mode(len(one) for one in several)
    columns = list(zip(*(one for one in several if len(one) == length), strict=True))
    if kind == "nonzero":
        return [round(statistics.fmean(column), 6) for column in columns]
    return [sum(column) for column in columns]
