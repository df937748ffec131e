"""What the operator of a federation asks its coordinator: who is there, what runs, and that a run is to stop.

Everything comes through the control port, from what Flower lists and from the runs' own events in their logs; so it
works wherever `fedbayes run --on NAME` does.
"""

import io
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.box import ROUNDED
from rich.markup import escape
from rich.table import Table

from fedbayes.cli.listing import COLOURS
from fedbayes.deploy import connections, renewal
from fedbayes.deploy.told import RunTold, SiteTold
from fedbayes.errors import CommandError
from server_app.events import parse
from server_app.rows import NONE, counted, duration

SHOWN = 20  # runs, the latest
PATIENCE = 5.0  # seconds for a run's log


@dataclass(frozen=True)
class Node:
    """A site as the coordinator knows it."""

    name: str
    status: str  # Flower's word
    since: float | None  # connected or away since, in seconds since 1970


@dataclass(frozen=True)
class Run:
    """A run with its number and the coordinator's word for its state."""

    number: int
    status: str
    started: float | None
    told: RunTold

    @property
    def name(self) -> str:
        return self.told.name or f"run {self.number}"

    @property
    def state(self) -> str:
        match self.status:
            case "finished:completed":
                return "finished"
            case "finished:stopped":
                return "stopped"
            case ended if ended.startswith("finished"):
                return "failed"
        return "running" if self.told.name else "starting"


@contextmanager
def coordinator(name: str) -> Iterator[Any]:
    """Flower's client of a federation; one sentence where nobody answers."""
    connections.require(name)
    import httpx
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection

    with redirect_stdout(io.StringIO()):  # Flower says which federation it is
        client = init_http_client_from_connection(read_superlink_connection(name))
    try:
        yield client
    except httpx.TransportError as error:
        raise CommandError(f"The coordinator of {name} does not answer ({error}).") from None
    finally:
        client.close()


def nodes(client: Any) -> list[Node]:
    from flwr.proto.control_pb2 import ListNodesRequest

    found = [one for one in client.ListNodes(ListNodesRequest()).nodes_info if not one.unregistered_at]
    return sorted(
        (
            Node(
                one.name or str(one.node_id),
                one.status,
                _seconds(one.last_activated_at if one.status == "online" else one.last_deactivated_at),
            )
            for one in found
        ),
        key=lambda node: node.name,
    )


def runs(client: Any, most: int = SHOWN) -> list[Run]:
    """The latest runs since the coordinator was started, the oldest first."""
    from flwr.proto.control_pb2 import ListRunsRequest

    listed = list(client.ListRuns(ListRunsRequest(limit=most)).run_dict.values())
    found = []
    for one in listed:
        status = ":".join(filter(None, (one.status.status, one.status.sub_status)))
        found.append(Run(one.run_id, status, _seconds(one.pending_at), _told(client, one.run_id)))
    return sorted(found, key=lambda run: run.started or 0.0)


def _told(client: Any, number: int) -> RunTold:
    """What a run's log says until now."""
    from flwr.proto.control_pb2 import StreamLogsRequest

    found: list[str] = []

    def look() -> None:
        stream = client.StreamLogs(StreamLogsRequest(run_id=number, after_timestamp=0.0))
        found.extend(next(stream).log_output.splitlines())  # the first answer holds all that is there
        stream.close()

    # A run that has said nothing yet gives no answer until it does.
    asking = threading.Thread(target=_quietly, args=(look,), daemon=True)
    asking.start()
    asking.join(PATIENCE)
    told = RunTold()
    for event in filter(None, map(parse, found)):
        told.hear(event)
    return told


def _quietly(look: Callable[[], None]) -> None:
    with suppress(Exception):  # without its log a run is shown by its number
        look()


def stop(client: Any, name: str) -> Run:
    """Stop the run of this name that is under way."""
    from flwr.proto.control_pb2 import StopRunRequest

    under_way = [run for run in runs(client) if run.state in ("running", "starting")]
    wanted = [run for run in under_way if name in (run.told.name, str(run.number))]
    if not wanted:
        others = ", ".join(run.name for run in under_way) or "none"
        raise CommandError(f'There is no run "{name}" under way; there is {others}.')
    client.StopRun(StopRunRequest(run_id=wanted[-1].number))
    return wanted[-1]


# ---------------------------------------------------------------- tables


def sites_table(there: Sequence[Node], ran: Sequence[Run]) -> Table:
    table = Table(box=ROUNDED)
    for title in ("site", "state", "since", "version", "run"):
        table.add_column(title, no_wrap=title != "site")
    for title in ("last round", "train", "test", "failures"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("last failure", overflow="fold")
    for node in there:
        run, told = _latest(node.name, ran)
        state = "[green]connected[/]" if node.status == "online" else "[yellow]away[/]"
        if node.status == "registered":
            state = "[dim]never seen[/]"
        cells = [_since(node.since), told.version or NONE, run.name if run else NONE]
        cells += [str(value) if run else NONE for value in (told.last_round, told.n_train, told.n_test)]
        table.add_row(
            node.name, state, *map(escape, cells), str(_failures(node.name, ran)), escape(told.reason)
        )
    return table


def _latest(site: str, ran: Sequence[Run]) -> tuple[Run | None, SiteTold]:
    """The last run in which a site took part, and what is known of it there."""
    for run in reversed(ran):
        if site in run.told.sites:
            return run, run.told.sites[site]
    return None, SiteTold()


def _failures(site: str, ran: Sequence[Run]) -> int:
    return sum(run.told.sites[site].failures for run in ran if site in run.told.sites)


def runs_table(ran: Sequence[Run]) -> Table:
    table = Table(box=ROUNDED)
    table.add_column("run", overflow="fold")
    for title in ("method", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("rounds", "PM", "GM", "sites", "failed", "s/round"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("started", "number"):
        table.add_column(title, no_wrap=True)
    for run in ran:
        told = run.told
        score = [next((told.scores[key] for key in (f"{model}_accuracy", f"{model}_rmse") if key in told.scores), None)
                 for model in ("pm", "gm")]  # fmt: skip
        pace = f"{told.seconds / told.told:.1f}" if told.told else NONE
        table.add_row(
            escape(run.name), told.method or NONE, f"[{COLOURS.get(run.state, 'default')}]{run.state}[/]",
            f"{told.round}/{told.rounds}" if told.rounds else NONE,
            *(NONE if value is None else f"{value:.3f}" for value in score),
            str(len(told.sites)), str(told.failed), pace, _since(run.started), str(run.number),
        )  # fmt: skip
    return table


def summary(there: Sequence[Node], ran: Sequence[Run]) -> str:
    connected = sum(node.status == "online" for node in there)
    under_way = [run.name for run in ran if run.state == "running"]
    words = f"{connected} of {counted(len(there), 'site')} connected"
    return f"{words}; under way: {', '.join(under_way)}." if under_way else f"{words}; no run is under way."


def certificates(keys: Path) -> str:
    """Until when the first of a federation's certificates holds; a warning 30 days ahead. Empty where none is here."""
    for expiry in renewal.expiries(keys):
        if warning := expiry.warning():
            return f"Warning: {warning}"
        return f"{expiry.what} holds until {expiry.until:%d %B %Y}, {expiry.days()} more days."
    return ""


def _since(seconds: float | None) -> str:
    if not seconds:
        return NONE
    return (
        f"{time.strftime('%d %b %H:%M', time.localtime(seconds))} ({duration(max(time.time() - seconds, 0))})"
    )


def _seconds(text: str) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
