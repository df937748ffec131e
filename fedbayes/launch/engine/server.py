"""The server of an embedded federation: the ServerApp, in a process of its own."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedbayes.launch.engine.children import in_a_thread_of_its_own
from fedbayes.launch.engine.grid import EmbeddedGrid
from fedbayes.launch.engine.memory import Memory
from fedbayes.launch.engine.nursery import NewPythons, Nursery
from fedbayes.launch.engine.pool import Pool
from fedbayes.launch.flower import QUIET
from fedbayes.launch.processes import MARKER
from fedbayes.launch.resources import devices_of_workers
from fedbayes.protocol.settings import Settings
from strategies import StrategyError

NAME = "fedbayes-server"


def main(
    config: Mapping[str, Any],
    clients: int,
    marker: str,
    out: int,
    alive: int,
    copies: bool,
    address: str = "",
) -> None:
    """In a copy of the command's process, or in a new Python; workers are `copies` of this one, or new Pythons, or,
    with an address, actors of the Ray cluster there.

    All output goes to `out`, that of workers too. `alive` is open in this process alone: its end is the server's end.
    """
    os.environ.update(QUIET | {MARKER: marker})
    os.setsid()  # the terminal's Ctrl-C is for the command alone
    _speak_into(out)
    os.set_inheritable(alive, False)
    if address:
        _run(config, partial(_cluster, clients, config, address))
        return
    shelf = Memory()
    threads = Settings.parse(config).threads
    source = Nursery(shelf, clients, threads, [alive]) if copies else NewPythons(shelf, clients, threads)
    devices = devices_of_workers(Settings.parse(config), clients)
    in_a_thread_of_its_own(lambda: _run(config, partial(EmbeddedGrid, clients, devices, source, shelf)))


def _cluster(clients: int, config: Mapping[str, Any], address: str) -> Pool:
    from fedbayes.launch.engine.cluster import ClusterGrid

    return ClusterGrid(clients, config, address)


def _run(config: Mapping[str, Any], open_grid: Callable[[], Pool]) -> None:
    from server_app.app import app
    from server_app.events import emit

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    try:
        grid = open_grid()
    except StrategyError as error:
        emit("error", message=str(error))
        sys.exit(1)
    try:
        app(grid, Context(1, 0, {}, RecordDict(), dict(config)))
    finally:
        grid.close()


def _speak_into(out: int) -> None:
    """Standard output and errors, of Python and of everything else, become `out`; there is no input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(out)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    for handler in logging.getLogger("flwr").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
