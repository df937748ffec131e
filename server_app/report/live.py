"""The page of a run that may still be going on: where it is, its curves, its sites, what failed, what it says."""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from fedbayes.protocol.columns import columns_of
from server_app.report import certainty, clients, day, progress, tiles
from server_app.report.figure import Figure
from server_app.report.files import Run, read_run
from server_app.report.log import tail
from server_app.report.page import page
from server_app.report.sites import sites
from server_app.report.watched import POLICY, SCRIPT, STYLE
from server_app.report.words import failure_rows, rounds_done, summary
from server_app.rows import duration, series

FILES = ("rounds.csv", "clients.csv", "log.txt")  # that the page links to
EVERY, RARELY = 2, 10  # seconds between two looks at a run that goes on, and at one that has ended
FAILURES_SHOWN = 20
PACE = 20  # of the last rounds, from which the time left is guessed


def watched(template: str, key: str, every: int, changed: float | None, **content: Any) -> str:
    """A page that renews itself every so many seconds; `key` is what its addresses end in."""
    return page(
        f"watched {template}",
        policy=POLICY,
        live_style=Markup(STYLE),
        script=Markup(SCRIPT),
        key=key,
        every=every,
        changed="" if changed is None else f"{changed:.0f}",
        **content,
    )


def refusal(key: str, title: str, words: str) -> str:
    """A page with one sentence."""
    return page("watched refusal", live_style=Markup(STYLE), key=key, title=title, words=words)


def starting(folder: Path, key: str, state: str, words: str, changed: float | None) -> str:
    """Of a run that has no config.json to read (yet)."""
    return watched(
        "start", key, EVERY, changed, title=folder.name, state=state, words=words, log=tail(folder)
    )


def live(folder: Path, key: str, held: bool, changed: float | None) -> str:
    """The page of a run; RunError where it cannot be read. `held`: somebody is at work on it."""
    run = read_run(folder, weights=False)
    state = str(run.config.get("state", "?"))
    if state == "running" and not held:
        state = "interrupted"
        run = replace(run, config=run.config | {"state": state})
    going = state == "running"
    failed = failure_rows(run)[::-1]
    done, rounds = rounds_done(run), run.settings.get("rounds", "?")
    words = summary(run)
    place = f"/run/{quote(folder.name, safe='')}"
    return watched(
        "run",
        key,
        EVERY if going else RARELY,
        changed,
        title=run.name,
        state=state,
        created=day(run),
        version=str(run.config.get("fedbayes", "?")),
        links=[("Report", f"{place}/report"), *((file, f"{place}/{file}") for file in FILES)],
        done=done,
        rounds=rounds,
        left=time_left(run, done) if going else "",
        words=words[:2] if going else [*words[:2], words[-1]],
        tiles=tiles(run),
        figures=_figures(run),
        failed_figures=[progress.failures(run)],
        sites=sites(run),
        failed=failed[:FAILURES_SHOWN],
        more_failed=len(failed) - FAILURES_SHOWN,
        log=tail(folder),
        missing=[] if going else run.missing,  # a run that goes on has not written everything yet
    )


def _figures(run: Run) -> Sequence[Figure | None]:
    own = [progress.own(run, column) for column in columns_of(run.config) if column.of == "round"]
    return [
        progress.convergence(run),
        clients.clients(run),
        certainty.uncertainty(run),
        *own,
        progress.seconds(run),
        progress.traffic(run),
    ]


def time_left(run: Run, done: int) -> str:
    """`about 3 min 20 s left`, by the pace of the last rounds."""
    paces = [value for _, value in series(run.rows, "seconds")][-PACE:]
    wanted = run.settings.get("rounds")
    if not paces or not isinstance(wanted, int) or wanted <= done:
        return ""
    return f"about {duration((wanted - done) * statistics.median(paces))} left"
