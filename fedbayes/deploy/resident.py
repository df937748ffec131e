"""A process that has used a GPU stays for the next message: its context on the device took seconds to make.

Flower means one process for each message and leaves nothing in order for a second one: its exit ends the process by
force some seconds later, its watch over the parent would be one more thread each time, and the app of another run would
be taken for the first one's. `prepare` puts that right in the forked process, where Flower is as it is known here;
where it is not, every process ends with its message, as before.
"""

import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from fedbayes.launch.app_bundle import PACKAGES

RUNNER = "flwr.supernode.runtime.run_clientapp"
NEEDED = ("flwr_exit", "start_parent_process_monitor", "get_load_client_app_fn")
FAREWELL = 5.0  # seconds for the last words to the SuperNode
READY = b"r"
ALWAYS = "FEDBAYES_RESIDENT"  # in the environment: stay in any case


def hand_over(worker: socket.socket, line: str) -> bool:
    """Give a message to a process that waits for one; False where it is busy or has ended."""
    try:
        if not select.select([worker], [], [], 0)[0] or worker.recv(1) != READY:
            return False
        worker.sendall(line.encode())
    except OSError:
        return False
    return True


def carry_out(line: str, requests: socket.socket, one: Callable[[str], None]) -> NoReturn:
    """A message and, while this process is worth keeping, those that come after it."""
    status, stays = 0, prepare()
    lines = requests.makefile("r", encoding="utf-8")
    while line:
        try:
            one(line)
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if not stays or not uses_accelerator():
            break
        try:
            requests.sendall(READY)
            line = lines.readline()
        except OSError:
            break
    sys.exit(status)


def uses_accelerator() -> bool:
    torch = sys.modules.get("torch")
    return ALWAYS in os.environ or bool(torch and torch.cuda.is_initialized())


def prepare() -> bool:
    """Make Flower fit for more than one message; whether it is."""
    runner: Any = sys.modules.get(RUNNER)
    if runner is None or not all(hasattr(runner, name) for name in NEEDED):
        return ALWAYS in os.environ and runner is None
    watch, find = runner.start_parent_process_monitor, runner.get_load_client_app_fn
    watched: set[int] = set()
    loaded: list[tuple[Any, ...]] = []

    def watch_once(parent: int) -> None:
        if parent not in watched:
            watched.add(parent)
            watch(parent)

    def find_anew(*arguments: Any, **named: Any) -> Callable[..., Any]:
        load = find(*arguments, **named)

        def load_app(*bundle: Any) -> Any:
            if loaded and loaded[-1] != bundle:
                forget_app()
            loaded.append(bundle)
            return load(*bundle)

        return load_app

    runner.start_parent_process_monitor, runner.get_load_client_app_fn = watch_once, find_anew
    runner.flwr_exit = leave
    return True


def forget_app() -> None:
    """The app of an earlier run, whose modules have the same names."""
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[name]


def leave(code: int, *_: Any, **__: Any) -> NoReturn:
    """Flower's exit, without the thread that ends the process by force although all is said."""
    from flwr.supercore.exit.exit_handler import trigger_exit_handlers

    trigger_exit_handlers(run_before_force_exit=True)
    force = threading.Timer(FAREWELL, os._exit, (1,))
    force.daemon = True
    force.start()
    trigger_exit_handlers(run_before_force_exit=False)
    force.cancel()
    raise SystemExit(0 if 0 <= code < 100 else 1)
