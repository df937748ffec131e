"""Runs whose ServerApp was killed: the coordinator ends them within seconds, says so, and leaves a true state.

Flower misses such a process after a minute and gives no reason; config.json would say "running" for ever. A ServerApp
holds the writer's lock of its run folder, which the kernel frees when the process ends, however it ends. So a run that
Flower takes for running, whose folder says so too and whose lock is free has lost its ServerApp.
"""

import json
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from flwr.supercore.date import now

from fedbayes.deploy.linkstate import MemoryState
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

    def start(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(EVERY)
            with suppress(OSError, RunError, KeyError):  # a folder may go while it is looked at
                self.look()

    def look(self) -> None:
        missed = {number: folder for number, folder in self._under_way() if _left(folder)}
        for number in self._missed & missed.keys():
            self._end(number, missed.pop(number))
        self._missed = set(missed)

    def _under_way(self) -> list[tuple[int, Path]]:
        with self.state.log_lock:
            told = [
                (number, Path(run.folder))
                for number, run in self.state.told.items()
                if run.state == "running"
            ]
        return [(number, folder) for number, folder in told if not self.state._is_finished_run(number)]

    def _end(self, number: int, folder: Path) -> None:
        """As if Flower had missed it already."""
        state, task = self.state, self.state.run_ids[number].run.primary_task_id
        assert task is not None
        event = {"event": "error", "time": round(time.time(), 3), "message": KILLED}
        state.add_task_log(task, f"{PREFIX}{json.dumps(event)}\n")
        set_state(folder, "failed", KILLED, unless=("finished", "stopped", "failed"))
        with state.lock_task_store:
            if (record := state.task_token_store.get(task)) is not None:
                record.active_until = now() - timedelta(seconds=1)
            state._cleanup_expired_task_tokens_locked()


def _left(folder: Path) -> bool:
    """Whether a run folder says that somebody is at work there, and nobody is."""
    if not (folder / LOCK).is_file() or is_locked(folder / LOCK):
        return False
    return (read_config(folder) or {}).get("state") == "running"
