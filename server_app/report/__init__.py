"""The report of a run: one self-contained report.html that opens offline from a file."""

import time
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from bayes_core.predict.forecast import LEVEL
from fedbayes.protocol.settings import defaults
from server_app.report import certainty, clients, clusters, progress, weights
from server_app.report.figure import NAMES, Table, headline, shown
from server_app.report.files import Run, read_run
from server_app.report.page import details, page, section, table, tiles
from server_app.report.words import failure_rows, method_name, rounds_done, summary
from server_app.rows import METRICS, MODELS, best, duration, last
from server_app.runs import replace_file

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
    state = str(run.config.get("state", "?"))
    version, created = escape(str(run.config.get("fedbayes", "?"))), escape(_day(run))
    head = (
        f'<header><h1>{escape(run.name)}</h1><span class="badge {escape(state)}">{escape(state)}</span>'
        f"<small>started {created} · fedbayes {version}</small></header>"
    )
    words = "".join(f"<p>{paragraph}</p>" for paragraph in summary(run) if paragraph)
    parts = [
        head,
        words,
        tiles(_tiles(run)),
        section("Result", [progress.convergence(run), clients.clients(run)], first=_result(run)),
        section(
            "Calibration and uncertainty",
            [
                certainty.reliability(run),
                certainty.intervals(run),
                certainty.uncertainty(run),
                certainty.histograms(run),
            ],
        ),
        section("Clusters", [clusters.heat_map(run), clusters.eigenvalues(run), clusters.memberships(run)]),
        section(
            "Weights, time and bytes",
            [
                weights.sigma(run),
                weights.inclusion(run),
                weights.layers(run),
                progress.seconds(run),
                progress.traffic(run),
            ],
        ),
        section("Failures", [progress.failures(run)], _failures(run)),
        section("Settings", [], _settings(run.settings)),
        section("What is not here", [], "".join(f"<p>{escape(line)}</p>" for line in run.missing)),
    ]
    return page(f"{run.name} · fedbayes", "\n".join(part for part in parts if part))


def _day(run: Run) -> str:
    text = str(run.config.get("created", "?"))
    try:
        return time.strftime("%d %B %Y, %H:%M UTC", time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return text


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    metric = headline(run)
    entries = [
        (model, shown(metric, value), f"{NAMES[model]} {METRICS[metric]}")
        for model in MODELS
        if (value := last(run.rows, f"{model}_{metric}")) is not None
    ]
    errors = [
        (model, shown("accuracy", value), f"{NAMES[model]} calibration error")
        for model in MODELS
        if (value := last(run.rows, f"{model}_ece")) is not None
    ]
    errors += [
        (model, shown("coverage", value), f"{NAMES[model]}, within {LEVEL:.0%} intervals")
        for model in MODELS
        if (value := last(run.rows, f"{model}_coverage")) is not None
    ]
    failed = int(progress.total(run, "clients_failed"))
    return [
        *entries,
        *errors,
        ("", f"{rounds_done(run)}", f"rounds of {run.settings.get('rounds', '?')}"),
        ("", duration(progress.total(run, "seconds")), "time in rounds"),
        ("bad" if failed else "", str(failed), "failed replies"),
    ]


def _result(run: Run) -> str:
    """Every metric of the last measured round, and the paper's best of the last 100."""
    lines = [
        [title, *(shown(metric, last(run.rows, f"{model}_{metric}")) for model in MODELS)]
        for metric, title in METRICS.items()
        if any(last(run.rows, f"{model}_{metric}") is not None for model in MODELS)
    ]
    peaks = [best(run.rows, f"{model}_accuracy") for model in MODELS]
    if any(peaks):
        cells = [f"{shown('accuracy', peak[0])} (round {peak[1]})" if peak else "–" for peak in peaks]
        lines.append(["best of the last 100 rounds", *cells])
    if not lines:
        return ""
    about = "The last measured round, all clients' test examples together."
    numbers = table(Table(["", "personal", "global"], lines))
    return (
        f'<figure id="result"><h3>{escape(method_name(run))}</h3>{numbers}'
        f"<figcaption>{escape(about)}</figcaption></figure>"
    )


def _failures(run: Run) -> str:
    lines = failure_rows(run)
    if not lines:
        return "<p>None: every reply could be used.</p>" if run.clients else ""
    rows = "".join(
        f'<tr><td class="n">{escape(at)}</td><td>{escape(site)}</td><td class="why">{escape(reason)}</td></tr>'
        for at, site, reason in lines[:FAILURES_SHOWN]
    )
    more = (
        f"<p>… and {len(lines) - FAILURES_SHOWN} more in clients.csv.</p>"
        if len(lines) > FAILURES_SHOWN
        else ""
    )
    head = "<tr><th class=n>round</th><th>site</th><th>what happened</th></tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>{more}'


def _settings(settings: Mapping[str, Any]) -> str:
    """Those that differ from the defaults, then all of them on request."""
    usual = defaults()
    own = [key for key in settings if settings[key] != usual.get(key) and key not in NO_SETTINGS]
    changed = Table(["changed setting", "value"], [[key, str(settings[key])] for key in own])
    rest = Table(["setting", "value"], [[key, str(value)] for key, value in settings.items()])
    return (table(changed) if own else "<p>All at their defaults.</p>") + details("All settings", table(rest))
