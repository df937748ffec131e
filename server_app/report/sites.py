"""The table of all sites: what they hold, how good the models are there, and whether they answered."""

from typing import Any

from fedbayes.protocol.columns import MODELS, columns_of
from server_app.report.clients import class_name, cluster_of, composition, latest
from server_app.report.figure import Table, headline, natural, with_interval
from server_app.report.files import Counts, Run
from server_app.rows import NONE, number

MOST_CLASSES = 12  # names in a cell
FEW = 6  # that stay on one line


def sites(run: Run) -> Table:
    """Every site: its size, its models' last figures, when it last answered, and how often it did not."""
    metric, clusters, measured, told = headline(run), cluster_of(run), latest(run), composition(run)
    known: dict[str, Any] = run.config.get("sites") or {}
    latest_status, failed, answered = _answers(run)
    models = [
        model
        for model in MODELS
        if any(number(row, f"{model}_{metric.key}") is not None for row in measured.values())
    ]
    groups = any(one.group is not None for one in told.values())
    labels = any(one.labels for one in told.values())
    own = [column for column in columns_of(run.config) if column.of == "client"]
    spread = " (95 % interval)" if metric.share else ""
    header = ["site", "training examples", "test examples"]
    header += [f"{MODELS[model]} {metric.title}{spread}" for model in models]
    header += ["cluster"] * bool(clusters) + ["true group"] * groups + ["classes"] * labels
    header += [*(column.title for column in own), "last answer in round", "failed replies", "status"]
    lines = []
    for site in sorted({*known, *latest_status, *measured}, key=natural):
        sizes, row, one = known.get(site) or {}, measured.get(site, {}), told.get(site, Counts())
        n_test = int(number(row, "n_test") or 0)
        line = [site, str(sizes.get("n_train", NONE)), str(sizes.get("n_test") or n_test or NONE)]
        line += [with_interval(metric, number(row, f"{model}_{metric.key}"), n_test) for model in models]
        line += [str(clusters.get(site, NONE))] * bool(clusters)
        line += [NONE if one.group is None else str(one.group)] * groups
        line += [_held(run, one.labels)] * labels
        line += [row.get(column.name) or NONE for column in own]
        line += [answered.get(site, NONE), str(failed.get(site, 0)), latest_status.get(site, NONE)]
        lines.append(line)
    return Table(header, lines)


def _answers(run: Run) -> tuple[dict[str, str], dict[str, int], dict[str, str]]:
    """Of each site its last status, how many replies failed, and the last round that it answered in."""
    status_of: dict[str, str] = {}
    failed: dict[str, int] = {}
    answered: dict[str, str] = {}
    for row in run.clients:
        site, status = row["site"], row.get("status") or NONE
        if status == "idle":  # that it was only measured
            continue
        status_of[site] = status
        if status.startswith("failed"):
            failed[site] = failed.get(site, 0) + 1
        else:
            answered[site] = row["round"]
    return status_of, failed, answered


def _held(run: Run, counts: list[int] | None) -> str:
    if counts is None:
        return "not told"
    names = [class_name(run, place) for place, count in enumerate(counts) if count]
    more = f" … {len(names)} in all" if len(names) > MOST_CLASSES else ""
    return (",\u00a0" if len(names) <= FEW else ", ").join(names[:MOST_CLASSES]) + more
