"""Runs whose ServerApp was killed: the coordinator ends them within seconds, says so, and leaves a true state.

Flower misses such a process after a minute and gives no reason; config.json would say "running" for ever. A ServerApp
has its task's token among its words, so a process that was seen with it and is there no more has ended, at whatever it
was: imports, hello, a round. And it holds the writer's lock of its run folder, which the kernel frees when the process
ends, however it ends: a run whose folder says "running" and whose lock is free has lost its ServerApp, wherever that
was. Either way Flower takes the run for running still. (One that ends before Flower has it for running is started
again, by Flower itself.)
"""

import json
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import psutil
from flwr.common.constant import Status
from flwr.supercore.constant import TaskType
from flwr.supercore.date import now

from fedbayes.deploy.linkstate import MemoryState
from fedbayes.launch.processes import lives
from fedbayes.launch.run_folder import set_state
from fedbayes.protocol.files import is_locked
from server_app.events import PREFIX
from server_app.stored import RunError, read_config

EVERY = 2.0  # seconds between looks; a run is given up at the second one
LOCK = ".writer.lock"
KILLED = "The run's ServerApp ended without a word: it was killed, or the coordinator's machine was short of memory."


class Orphans:
    """Looks after the runs of one coordinator."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self._missed: set[int] = set()  # runs whose ServerApp was not there at the last look
        self._apps: dict[str, psutil.Process] = {}  # the ServerApps that were seen, by their tokens

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(EVERY)
            with suppress(OSError, RunError, KeyError, psutil.Error):  # a folder may go while it is looked at
                self.look()

    def look(self) -> None:
        under_way = self._under_way()
        self._find(under_way.values())
        missed = {number for number, token in under_way.items() if self._lost(number, token)}
        for number in self._missed & missed:
            self._end(number)
        self._missed = missed - self._missed

    def _under_way(self) -> dict[int, str]:
        """The runs that Flower takes for running, with their ServerApps' tokens."""
        state = self.state
        with state.lock_task_store:
            return {
                task.run_id: state.task_token_store[number].token
                for number, task in state.task_store.items()
                if task.type == TaskType.SERVER_APP
                and task.status.status == Status.RUNNING
                and number in state.task_token_store
            }

    def _find(self, tokens: Collection[str]) -> None:
        """Whose ServerApp has come since the last look: a process below this one."""
        self._apps = {token: app for token, app in self._apps.items() if token in tokens}
        if not (wanted := set(tokens) - self._apps.keys()):
            return
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it has just ended
                self._apps |= dict.fromkeys(wanted.intersection(one.cmdline()), one)

    def _lost(self, number: int, token: str) -> bool:
        app, folder = self._apps.get(token), self._told(number)
        return (app is not None and not lives(app)) or (folder is not None and _left(folder))

    def _told(self, number: int) -> Path | None:
        """Where a run works, once it has said so."""
        with self.state.log_lock:
            told = self.state.told.get(number)
        return Path(told.folder) if told is not None and told.state == "running" else None

    def _asked(self, number: int) -> Path | None:
        """Where it was to work: what it says reaches the coordinator some seconds later, or never."""
        config = self.state.run_ids[number].run.override_config
        names = [config.get(key) for key in ("out-dir", "run-name")]
        return Path(*map(str, names)) if all(names) else None

    def _end(self, number: int) -> None:
        """As if Flower had missed it already."""
        state, task = self.state, self.state.run_ids[number].run.primary_task_id
        assert task is not None
        folder = self._told(number) or self._asked(number)
        event = {"event": "error", "time": round(time.time(), 3), "message": KILLED}
        state.add_task_log(task, f"{PREFIX}{json.dumps(event)}\n")
        if folder is not None and _left(folder):
            set_state(folder, "failed", KILLED)
        with state.lock_task_store:
            if (record := state.task_token_store.get(task)) is not None:
                record.active_until = now() - timedelta(seconds=1)
            state._cleanup_expired_task_tokens_locked()


def _left(folder: Path) -> bool:
    """Whether a run folder says that somebody is at work there, and nobody is."""
    if not (folder / LOCK).is_file() or is_locked(folder / LOCK):
        return False
    return (read_config(folder) or {}).get("state") == "running"
