"""What the coordinator keeps of sites, in memory: Flower's own in-memory state, made to last.

Flower's database file loses replies as soon as a dozen sites write to it at once ("database is locked"); a run outlives
its coordinator by the checkpoint in its own folder, so nothing here has to be on a disk. What must survive a restart is
who may take part: the public keys come from the coordinator's folder, each with a number made of the key itself, so
that sites that stayed up go on as if nothing had been. What sites reply is looked after in replies.py.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flwr.app import Message
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    Status,
    SubStatus,
)
from flwr.supercore.constant import NodeStatus
from flwr.supercore.fab import Fab
from flwr.supercore.run import RunStatus

from fedbayes.deploy.app_folder import install
from fedbayes.deploy.replies import ABANDONED, RESTARTED, UNSENT, Replies
from fedbayes.deploy.told import RunTold
from server_app.events import parse

LONGEST = 2**20  # characters of a line of log
SILENT = (
    30.0  # seconds; a SuperNode gives a sign of life every 18 to 23 s, and asks for work every 3 s when idle
)


class MemoryState(Replies):
    """One coordinator's state; `KEYS` are the public keys of its sites, by which it begins."""

    KEYS: Mapping[bytes, str] = {}

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._installing = threading.Lock()
        self.told: dict[int, RunTold] = {}  # by run
        self.tell: Callable[[Mapping[str, Any]], None] | None = None  # hears every event, with its run's name
        self._lines: dict[int, str] = {}  # what has no end yet of a task's log
        for key, name in self.KEYS.items():
            self.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_DEFAULT_INTERVAL, name=name)

    # ------------------------------------------------------------------ sites

    def create_node(self, owner_aid: str, *words: Any, **named: Any) -> int:
        """A site of a number that its key always has, also after it was removed and has come back."""
        key: bytes = named.get("public_key") or words[1]
        if not named.get("name"):
            raise ValueError("a site's key needs a name, by which the site must call itself")
        number = number_of(key)
        with self.lock:
            before = self.nodes.get(number)
            if before is not None and before.status == NodeStatus.UNREGISTERED:
                del self.nodes[number], self.node_public_key_to_node_id[key]
            given = super().create_node(owner_aid, *words, **named)
            node = self.nodes.pop(given)
            node.node_id = number
            self.nodes[number] = node
            self.node_public_key_to_node_id[key] = number
            self.owner_to_node_ids[owner_aid] = self.owner_to_node_ids[owner_aid] - {given} | {number}
        return number

    def delete_node(self, owner_aid: str, node_id: int) -> None:
        with self.lock:
            node = self.nodes.get(node_id)
            if node is not None and not node.HasField("online_until"):
                node.online_until = 0.0  # one that was never there: Flower compares it
            super().delete_node(owner_aid, node_id)

    def activate_node(self, node_id: int, heartbeat_interval: float) -> bool:
        """A site that starts; Flower refuses one that was killed for a minute, and its round waits for an answer.

        Whoever has its key takes its place as soon as the earlier process is silent, and what that one was asked is
        answered for: nobody else will.
        """
        with self.lock:
            node = self.nodes.get(node_id)
            if node is not None and node.status == NodeStatus.ONLINE and self._silence(node_id) > SILENT:
                self.deactivate_node(node_id)
            taken = super().activate_node(node_id, heartbeat_interval)
            if taken:
                self._heard[node_id] = time.monotonic()
                for session in self._sessions(node_id):
                    self._forget(session)
                for asked, _ in self._unanswered(node_id):
                    self._answer(asked, RESTARTED)
            return taken

    def acknowledge_node_heartbeat(self, node_id: int, heartbeat_interval: float) -> bool:
        self._heard[node_id] = time.monotonic()
        return super().acknowledge_node_heartbeat(node_id, heartbeat_interval)

    def _silence(self, node_id: int) -> float:
        return time.monotonic() - self._heard.get(node_id, -SILENT)

    def get_message_ins(self, node_id: int, *words: Any, **named: Any) -> list[Message]:
        """Whoever asks for work is there, and has nothing more to say to what it was asked before: a SuperNode does one
        thing after the other."""
        with self.lock:
            node = self.nodes.get(node_id)
            if node is not None and node.status in (NodeStatus.REGISTERED, NodeStatus.OFFLINE):
                self.acknowledge_node_heartbeat(node_id, HEARTBEAT_DEFAULT_INTERVAL)
            self._heard[node_id] = time.monotonic()
            for session in self._sessions(node_id):
                self._give_up(session, ABANDONED)
            for asked, message in self._unanswered(node_id):
                if asked in self.object_store:  # it never arrived: the connection broke on its way
                    message.metadata.delivered_at = ""
                else:
                    self._answer(asked, UNSENT)
            return super().get_message_ins(node_id, *words, **named)

    def store_fab(self, fab: Fab) -> str:
        """A run's app, in its place before a ServerApp looks for it there."""
        with self._installing:
            install(fab.content)
        return super().store_fab(fab)

    def connected(self) -> dict[str, bool]:
        """Of each site that may take part, whether it is there."""
        nodes = self.get_node_info()
        return {
            str(node.name or node.node_id): node.status == NodeStatus.ONLINE
            for node in nodes
            if node.status != NodeStatus.UNREGISTERED
        }

    def add_task_log(self, task_id: int, log_message: str) -> None:
        """A run's log, in which its events are."""
        super().add_task_log(task_id, log_message)
        with self.log_lock:
            *lines, self._lines[task_id] = (self._lines.get(task_id, "") + log_message).split("\n")
            self._lines[task_id] = self._lines[task_id][-LONGEST:]
            for event in filter(None, map(parse, lines)):
                told = self.told.setdefault(self.task_store[task_id].run_id, RunTold())
                with suppress(KeyError, TypeError, ValueError, AttributeError):  # another version's
                    told.hear(event)
                if self.tell is not None:
                    self.tell({"run": told.name} | event)

    def get_run_status(self, run_ids: set[int]) -> dict[int, RunStatus]:
        """A run that nobody knows was an earlier coordinator's, and is over: sites that still answer it are told so."""
        over = RunStatus(Status.FINISHED, SubStatus.FAILED, "The coordinator was started anew.")
        return dict.fromkeys(run_ids, over) | super().get_run_status(run_ids)

    def runs_told(self) -> list[RunTold]:
        """Runs that have begun; those that ended without a word have failed."""
        with self.log_lock:
            for number, run in self.told.items():
                if run.state in ("starting", "running") and self._is_finished_run(number):
                    run.state = "ended"
            return [run for run in self.told.values() if run.name]


def number_of(public_key: bytes) -> int:
    """A node's number, from its key; 0 and 1 are Flower's own."""
    return int.from_bytes(hashlib.sha256(public_key).digest()[:8], "big") | 2
