"""The report of a run: one self-contained report.html that opens offline from a file."""

import time
from collections.abc import Callable
from pathlib import Path

from bayes_core.predict.forecast import LEVEL
from fedbayes.protocol.columns import MODELS, SHOWN, Metric, columns_of
from fedbayes.protocol.files import replace_file
from fedbayes.protocol.settings import defaults
from server_app.report import certainty, classes, clients, clusters, progress, trust, weights
from server_app.report.figure import Table, as_share, headline, interval, shown
from server_app.report.files import Run, read_run
from server_app.report.page import page
from server_app.report.sites import sites
from server_app.report.words import failed_replies, failure_rows, method_words, rounds_done, summary
from server_app.rows import NONE, WINDOW, best, duration, examples_of, last

FILE = "report.html"
FAILURES_SHOWN = 100
NO_SETTINGS = ("run-name", "out-dir", "data-dir", "resume", "resume-with")  # where and how, not what


def write_report(folder: Path) -> Path:
    """(Re)build OUT/RUN/report.html from what the run folder holds; RunError where that is no run."""
    run = read_run(folder)
    file = folder / FILE
    replace_file(file, render(run).encode())
    return file


def render(run: Run) -> str:
    """The whole page."""
    failed, usual = failure_rows(run), defaults()
    settings = [[key, str(value)] for key, value in run.settings.items()]
    changed = [line for line in settings if run.settings[line[0]] != usual.get(line[0])]
    own = [progress.own(run, column) for column in columns_of(run.config) if column.of == "round"]
    return page(
        "report",
        title=run.name,
        state=str(run.config.get("state", "?")),
        created=day(run),
        version=str(run.config.get("fedbayes", "?")),
        method=method_words(run).title,
        summary=summary(run),
        tiles=tiles(run),
        result=_result(run),
        figures={
            "result": [progress.convergence(run), clients.clients(run)],
            "certainty": [
                certainty.reliability(run),
                certainty.intervals(run),
                trust.abstention(run),
                trust.by_value(run),
                trust.by_site(run),
                certainty.uncertainty(run),
                certainty.histograms(run),
            ],
            "classes": [classes.classes(run, model) for model in MODELS],
            "clusters": [clusters.heat_map(run), clusters.eigenvalues(run), clusters.memberships(run)],
            "own": own,
            "cost": [
                weights.sigma(run),
                weights.inclusion(run),
                weights.layers(run),
                progress.seconds(run),
                progress.traffic(run),
            ],
            "failures": [progress.failures(run)],
        },
        by_class=classes.by_class(run),
        sites=sites(run),
        failed=failed[:FAILURES_SHOWN],
        more_failed=len(failed) - FAILURES_SHOWN,
        clients_told=bool(run.clients),
        changed=Table(["changed setting", "value"], [line for line in changed if line[0] not in NO_SETTINGS]),
        settings=Table(["setting", "value"], settings),
        missing=run.missing,
    )


def day(run: Run) -> str:
    """When it was started."""
    text = str(run.config.get("created", "?"))
    try:
        return time.strftime("%d %B %Y, %H:%M UTC", time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return text


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """Style, figure, and what it is."""
    metric = headline(run)

    def of_models(key: str, form: Callable[[float], str], words: str) -> list[tuple[str, str, str]]:
        found = {model: last(run.rows, f"{model}_{key}") for model in MODELS}
        n = examples_of(run.clients, run.config.get("sites")).get(key, 0)
        return [
            (
                model,
                form(value),
                f"{MODELS[model]}{words}" + (f", 95 % interval {interval(value, n)}" if n else ""),
            )
            for model, value in found.items()
            if value is not None
        ]

    failed, done = failed_replies(run), rounds_done(run)
    return [
        *of_models(metric.key, lambda value: shown(metric, value), f" {metric.title}"),
        *of_models("ece", as_share, " calibration error"),
        *of_models("coverage", as_share, f", within {LEVEL:.0%} intervals"),
        ("", str(done), f"round{'' if done == 1 else 's'} of {run.settings.get('rounds', '?')}"),
        ("", duration(progress.total(run, "seconds")), "time in rounds"),
        ("bad" if failed else "", str(failed), "failed replies"),
    ]


def _result(run: Run) -> Table:
    """Every metric of the last measured round, and the paper's best of the last 100."""
    lines = [
        [metric.title, *(shown(metric, last(run.rows, f"{model}_{metric.key}")) for model in MODELS)]
        for metric in _present(run)
    ]
    examples = examples_of(run.clients, run.config.get("sites"))
    for place, metric in [*enumerate(_present(run))][::-1]:
        if n := examples.get(metric.key):
            values = [last(run.rows, f"{model}_{metric.key}") for model in MODELS]
            lines.insert(place + 1, ["95 % interval of it", *(interval(value, n) for value in values)])
    peaks = [best(run.rows, f"{model}_accuracy") for model in MODELS]
    if any(peaks):
        cells = [f"{as_share(peak[0])} (round {peak[1]})" if peak else NONE for peak in peaks]
        lines.append([f"best of the last {WINDOW} rounds, chosen on test data", *cells])
    return Table(["", *MODELS.values()], lines)


def _present(run: Run) -> list[Metric]:
    """The metrics that some model has."""
    return [one for one in SHOWN if any(last(run.rows, f"{model}_{one.key}") is not None for model in MODELS)]
