"""Prometheus metrics of a coordinator: `fedbayes coordinator --metrics-port N`, at http://127.0.0.1:N/metrics.

The text format is a line for each number, so no library is needed for it. What is counted comes from the state in
memory (who is connected) and from the runs' own events, as they pass through their logs.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedbayes.deploy.told import RunTold

TYPE = "text/plain; version=0.0.4; charset=utf-8"
METRICS = {  # name → kind and what it is
    "fedbayes_sites_registered": ("gauge", "Sites whose keys the coordinator has."),
    "fedbayes_sites_connected": ("gauge", "Sites that are connected."),
    "fedbayes_site_up": ("gauge", "Whether a site is connected."),
    "fedbayes_site_last_round": ("gauge", "The last round that a site has answered."),
    "fedbayes_site_failures_total": ("counter", "Failed replies of a site."),
    "fedbayes_site_forged_total": (
        "counter",
        "What a site sent that was not its own; all was refused.",
    ),
    "fedbayes_run_running": ("gauge", "Whether a run is under way."),
    "fedbayes_run_round": ("gauge", "The last round that is saved."),
    "fedbayes_run_rounds": ("gauge", "Rounds that a run is to have."),
    "fedbayes_run_left_out": ("gauge", "Nodes that have come to a run and take no part in it."),
    "fedbayes_run_score": ("gauge", "Latest measures, of personal and global models."),
    "fedbayes_rounds_total": ("counter", "Rounds since the coordinator started."),
    "fedbayes_round_seconds_total": ("counter", "Seconds that these rounds have taken."),
    "fedbayes_round_last_seconds": ("gauge", "Seconds that the last round has taken."),
    "fedbayes_replies_total": ("counter", "Replies that were used."),
    "fedbayes_replies_failed_total": ("counter", "Replies that failed, by kind of reason."),
    "fedbayes_bytes_total": ("counter", "Bytes of arrays, up from sites and down to them."),
}
Sample = tuple[str, Mapping[str, str], float]


def render(
    nodes: Mapping[str, bool], runs: Iterable[RunTold], forged: Mapping[str, int] | None = None
) -> str:
    """All metrics in Prometheus' text format.

    `nodes` says of each site whether it is connected, `forged` how much it sent that was not its own.
    """
    found: dict[str, list[str]] = {name: [] for name in METRICS}
    named: dict[str, RunTold] = {}
    for (
        run
    ) in runs:  # a run and those that resumed it are one: no two lines may be of the same name and labels
        named[run.name] = run.after(named[run.name]) if run.name in named else run
    samples = [*_of_sites(nodes, forged or {}), *(one for run in named.values() for one in _of_run(run))]
    for name, labels, value in samples:
        words = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        # Fifteen digits: with Python's own six, a counter of bytes stands still from a million on.
        found[name].append(f"{name}{{{words}}} {value:.15g}" if words else f"{name} {value:.15g}")
    lines = []
    for name, found_lines in found.items():
        kind, text = METRICS[name]
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *found_lines]
    return "\n".join(lines) + "\n"


def _of_sites(nodes: Mapping[str, bool], forged: Mapping[str, int]) -> Iterator[Sample]:
    yield "fedbayes_sites_registered", {}, len(nodes)
    yield "fedbayes_sites_connected", {}, sum(nodes.values())
    for site, connected in sorted(nodes.items()):
        yield "fedbayes_site_up", {"site": site}, connected
        yield "fedbayes_site_forged_total", {"site": site}, forged.get(site, 0)


def _of_run(run: RunTold) -> Iterator[Sample]:
    of = {"run": run.name}
    yield "fedbayes_run_running", of, run.state == "running"
    yield "fedbayes_run_round", of, run.round
    yield "fedbayes_run_rounds", of, run.rounds
    yield "fedbayes_run_left_out", of, run.left_out
    yield "fedbayes_rounds_total", of, run.told
    yield "fedbayes_round_seconds_total", of, round(run.seconds, 3)
    yield "fedbayes_round_last_seconds", of, run.last_seconds
    yield "fedbayes_replies_total", of, run.ok
    for kind, count in sorted(run.kinds.items()):
        yield "fedbayes_replies_failed_total", of | {"reason": kind}, count
    for direction, count in (("up", run.bytes_up), ("down", run.bytes_down)):
        yield "fedbayes_bytes_total", of | {"direction": direction}, count
    for name, score in run.scores.items():
        model, _, measure = name.partition("_")
        yield "fedbayes_run_score", of | {"model": model, "measure": measure}, score
    for site, told in sorted(run.sites.items()):
        yield "fedbayes_site_last_round", of | {"site": site}, told.last_round
        yield "fedbayes_site_failures_total", of | {"site": site}, told.failures


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def serve(host: str, port: int, text: Callable[[], str]) -> ThreadingHTTPServer:
    """Answer at /metrics, from a thread that ends with this process. OSError where the port is taken."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path.split("?")[0] in ("/", "/metrics")
            content = text().encode() if known else b"metrics are at /metrics\n"
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nobody wants a line for every scrape."""

    server = ThreadingHTTPServer((host, port), Answer)
    threading.Thread(target=server.serve_forever, daemon=True, name="metrics").start()
    return server
