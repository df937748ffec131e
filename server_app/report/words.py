"""A run in words: what was done, what came out, what went wrong. What is not Markup here becomes text in the page."""

from collections.abc import Iterator
from pathlib import Path

from markupsafe import Markup

from bayes_core.predict.forecast import LEVEL
from fedbayes.protocol.columns import MODELS, Metric
from fedbayes.protocol.objects import is_pool
from fedbayes.protocol.settings import DATASET_NAME
from server_app.facts import facts_in_words, weights_in_words
from server_app.report.certainty import entropies, verdict
from server_app.report.clients import cluster_of, latest
from server_app.report.figure import headline, shown
from server_app.report.files import Run
from server_app.report.methods import MethodWords, words_of
from server_app.report.progress import size, total
from server_app.report.svg import grouped, percent
from server_app.rows import duration, evaluated, last, number, series

STATES = {
    "running": "is still running, or ended without a word",
    "stopped": "was stopped before its end",
    "failed": "failed",
    "interrupted": "ended without a word; it can be resumed",
}


def method_words(run: Run) -> MethodWords:
    """What the run's method says of itself."""
    return words_of(run.config)


def rounds_done(run: Run) -> int:
    """How many are saved: the row of the last one may not have been written when a run stopped."""
    return max((int(row["round"]) for row in run.rows), default=0) if run.saved is None else run.saved


def summary(run: Run) -> list[Markup]:
    """The paragraphs at the top."""
    return [Markup(" ").join(words) for words in (_setting(run), _result(run), _details(run), _ending(run))]


def _setting(run: Run) -> Iterator[str]:
    settings, method = run.settings, method_words(run)
    yield Markup("<b>{}</b>{}{}.").format(method.title, ": " if method.idea else "", method.idea)
    sites = run.config.get("sites") or {}
    examples = [sum(int(one.get(key, 0)) for one in sites.values()) for key in ("n_train", "n_test")]
    held = f" with {grouped(examples[0])} training and {grouped(examples[1])} test examples" if sites else ""
    dataset, dealt = Path(str(settings.get("dataset", "?"))).name, _is_dealt(run)
    if not run.config.get("partitions", 1):  # each site has its own data, and says nothing of them
        dataset = "the sites' own data"
    clients = run.config.get("clients", len(sites))
    layout, many = settings.get("layout", "?"), settings.get("size", "?")
    how = f" (layout {layout}, size {many})" if dealt else ""
    yield Markup("{} client{}{} of <b>{}</b>{}.").format(clients, "s" * (clients != 1), held, dataset, how)
    weights = sum(run.layers.values())
    model = f"Model {settings.get('model', '?')}"
    if not weights_in_words(run.config):
        yield f"{model} with {grouped(weights)} weights." if weights else f"{model}."
    yield from facts_in_words(run.config)


def _is_dealt(run: Run) -> bool:
    """Whether one data set was cut into shares, and not each site brought its own."""
    dataset = str(run.settings.get("dataset", "?"))
    numbered = all(
        str(site).isdecimal() for site in run.config.get("sites") or {}
    )  # files give sites their names
    named = DATASET_NAME.fullmatch(dataset) or is_pool(dataset) or dataset.endswith(".npz")
    return bool(named) and numbered and dataset != "functions" and bool(run.config.get("partitions", 1))


def _result(run: Run) -> Iterator[str]:
    metric = headline(run)
    scores = {
        model: value for model in MODELS if (value := last(run.rows, f"{model}_{metric.key}")) is not None
    }
    if not scores:
        yield "No round has been measured yet."
        return
    at = evaluated(run.rows)[-1]["round"]
    whose = " (that of each client's cluster)" if method_words(run).clusters else ""
    names = {"pm": "the personal models", "gm": f"the global model{whose}"}
    models = ", ".join(f"{names[model]} {shown(metric, value)}" for model, value in scores.items())
    verb = f"reach{'' if 'pm' in scores else 'es'} an {metric.title} of"
    first, *others = models.split(", ")
    who, _, score = first.rpartition(" ")
    told = ", ".join([f"{who} {verb} {score}", *others])
    yield Markup("<b>After round {}, {}</b> on all clients' test data.").format(at, told)
    by_site = {
        model: value
        for model in scores
        if (value := last(run.rows, f"{model}_sites_{metric.key}")) is not None
    }
    if by_site:
        told = " and ".join(f"{shown(metric, value)} ({MODELS[model]})" for model, value in by_site.items())
        yield f"With each client counting once, whatever its number of examples, it is {told}."
    if len(scores) == 2:
        yield _ahead(run, metric)
    yield _privacy(run)


def _privacy(run: Run) -> str:
    """What is promised to whoever took part."""
    clients, examples = series(run.rows, "epsilon"), series(run.rows, "epsilon_examples")
    delta, sums = run.settings.get("dp-delta", "?"), run.settings.get("secure-sum") is True
    seen = "the coordinator saw uploads and measures only as sums over at least three sites (secure-sum)"
    told = []
    if clients:
        towards = (
            "with noise of the sites' own, towards everybody"
            if sums
            else "towards everybody but the coordinator"
        )
        told.append(
            f"the global models of all rounds are (ε = {clients[-1][1]:.3g}, δ = {delta})-differentially private for a "
            f"whole client's data, {towards} (a client taken out counts as one whose change is 0: that it takes part "
            "is no secret; ε is of this run alone, and runs add up)"
        )
    if examples:
        told.append(
            f"what left a site's training is (ε = {examples[-1][1]:.3g}, δ = {delta})-differentially private for a "
            "single example, towards everybody, by the sites' own ledgers (the largest); personal models have no noise "
            "and stay at their sites"
        )
    if told:
        return f"Privacy: {'; '.join([*told, seen] if sums else told)}; the figures on this page are not covered."
    bound = "what these sums and the global models tell of one site is not bounded"
    return f"Privacy: {seen}; {bound}." if sums else "Privacy: no guarantee."


def _details(run: Run) -> Iterator[str]:
    yield from _calibration(run)
    yield from _coverage(run)
    yield from _certainty(run)
    if (ratio := last(run.rows, "pm_nonzero")) is not None and ratio < 1:
        yield f"{percent(ratio)} of the personal models' weights are on."
    yield from _clusters(run)


def _ahead(run: Run, metric: Metric) -> str:
    pairs = [[number(row, f"{model}_{metric.key}") for model in MODELS] for row in latest(run).values()]
    both = [(pm, gm) for pm, gm in pairs if pm is not None and gm is not None]
    better = sum(pm > gm if metric.better == "higher" else pm < gm for pm, gm in both)
    return f"The personal model is better than the global one at {better} of {len(both)} clients."


def _calibration(run: Run) -> Iterator[str]:
    errors = {model: error for model in MODELS if (error := last(run.rows, f"{model}_ece")) is not None}
    final = run.evaluations[-1] if run.evaluations else None
    told = []
    for model, error in errors.items():
        tally = getattr(final, model) if final else None
        how = f" ({verdict(tally)})" if tally else ""
        told.append(f"{percent(error)} for the {MODELS[model]} model{how}")
    if told:
        yield f"The calibration error (ECE, the gap between confidence and accuracy) is {' and '.join(told)}."


def _coverage(run: Run) -> Iterator[str]:
    shares = {model: share for model in MODELS if (share := last(run.rows, f"{model}_coverage")) is not None}
    told = [
        f"{percent(share)} of the targets by the {MODELS[model]} model's" for model, share in shares.items()
    ]
    if told:
        yield f"Intervals that should hold {percent(LEVEL)} hold {' and '.join(told)}."


def _certainty(run: Run) -> Iterator[str]:
    model, means = entropies(run.rows, run)
    if len(means) > 1:
        (first, before), (_, now) = means[0], means[-1]
        way = "fell" if now < before else "rose"
        yield (
            f"The uncertainty (entropy) of the {MODELS[model]} predictions {way} from {percent(before)} of a "
            f"uniform guess's in round {first} to {percent(now)}."
        )


def _clusters(run: Run) -> Iterator[str]:
    clusters = cluster_of(run)
    if not clusters:
        return
    sizes = [list(clusters.values()).count(k) for k in sorted(set(clusters.values()))]
    how = ""
    if run.clusters:
        how = " (as asked for)" if run.clusters.asked else " (a number found from the data)"
    agreement = [value for row in run.rows if (value := number(row, "adjusted_rand")) is not None]
    truth = (
        f"; they fit the true groups with an adjusted Rand index of {agreement[-1]:g}" if agreement else ""
    )
    several = "s" if len(sizes) != 1 else ""
    yield f"{len(sizes)} cluster{several}{how} of {_listed(sizes)} clients{truth}."


def _listed(numbers: list[int]) -> str:
    *most, final = map(str, numbers)
    return f"{', '.join(most)} and {final}" if most else final


def _ending(run: Run) -> Iterator[str]:
    done, wanted = rounds_done(run), run.settings.get("rounds", "?")
    state, message = str(run.config.get("state", "?")), str(run.config.get("message") or "")
    passed, sent = total(run, "seconds"), total(run, "bytes_up") + total(run, "bytes_down")
    failed = failed_replies(run)
    replies = "no reply failed" if not failed else f"{failed} repl{'y' if failed == 1 else 'ies'} failed"
    yield (
        f"{done} of {wanted} round{'' if wanted == 1 else 's'} in {duration(passed)}, {size(sent)} of distributions "
        f"exchanged, {replies}."
    )
    if early := run.config.get("stopped_early"):
        yield str(early)
    if left_out := sum(row.get("status") == "left out" for row in run.clients):
        yield f"{left_out} uploads, the least certain, were left out (aggregation-confidence)."
    if state != "finished":
        reason = f": {message}" if message else "."
        yield Markup('<b class="bad">The run {}</b>{}').format(STATES.get(state, state), reason)


def failed_replies(run: Run) -> int:
    """In all rounds, with those of the round that ended a failed run, which has no row."""
    return int(total(run, "clients_failed")) + len(_final_failures(run))


def _final_failures(run: Run) -> list[list[str]]:
    said = run.config.get("failures")
    said = said if isinstance(said, dict) else {}
    sites = said.get("sites")
    if not isinstance(sites, dict) or not str(said.get("round")).isdecimal():
        return []
    return [[str(said["round"]), str(site), str(reason)] for site, reason in sorted(sites.items())]


def failure_rows(run: Run) -> list[list[str]]:
    """Round, site and reason of every failed reply, and every site that an evaluation missed."""
    failed = [
        [row["round"], row.get("site", "?"), (row.get("status") or "").removeprefix("failed: ")]
        for row in run.clients
        if (row.get("status") or "").startswith("failed")
    ]
    failed += _final_failures(run)
    known = {(line[0], line[1]) for line in failed}
    sites = set(run.config.get("sites") or {})
    measured: dict[str, set[str]] = {row["round"]: set() for row in evaluated(run.rows)}
    for row in evaluated(run.clients):
        measured.setdefault(row["round"], set()).add(row.get("site", "?"))
    missed = [
        [at, site, "was not measured"]
        for at, present in measured.items()
        for site in sites - present
        if (at, site) not in known and present
    ]
    return sorted(failed + missed, key=lambda line: (int(line[0]), line[1]))
