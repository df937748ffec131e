"""What the coordinator keeps of sites and messages, in memory: Flower's own in-memory state, made to last and bounded.

Flower's database file loses replies as soon as a dozen sites write to it at once ("database is locked"); a run outlives
its coordinator by the checkpoint in its own folder, so nothing here has to be on a disk. What must survive a restart is
who may take part: the public keys come from the coordinator's folder, each with a number made of the key itself, so
that sites that stayed up go on as if nothing had been.

A reply is handed on when it is whole, and one that is given up, or is far larger than what the run sends, on its way or
put together, is answered for at once: whoever waits for it learns why.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    ErrorCode,
    Status,
    SubStatus,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.supercore.constant import NodeStatus
from flwr.supercore.date import now
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.run import RunStatus

from fedbayes.deploy.app_folder import install
from fedbayes.deploy.told import RunTold
from fedbayes.deploy.unpacked import unpacked
from server_app.events import parse

LONGEST = 2**20  # characters of a line of log
LEAST = 16 * 2**20  # bytes that any reply may have: reports, tallies, what tables say of themselves
TIMES = 4  # as large as the largest message of its run a reply may be
OBJECTS = 20_000  # parts of a reply; an array has one for every 5 MB
ABANDONED = "its reply could not be sent as a whole"
UNSENT = "its reply could not be sent"
RESTARTED = "the site was started again before it had answered"
SILENT = (
    30.0  # seconds; a SuperNode gives a sign of life every 18 to 23 s, and asks for work every 3 s when idle
)


@dataclass
class Upload:
    """A reply on its way in."""

    asked: str  # the id of the message that it answers
    node: int
    size: int = 0


class MemoryState(InMemoryLinkState):
    """One coordinator's state; `KEYS` are the public keys of its sites, by which it begins."""

    KEYS: Mapping[bytes, str] = {}

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._uploads: dict[str, Upload] = {}  # by push session
        self._pushed: dict[str, int] = {}  # bytes of a ServerApp's message, by push session
        self._largest: dict[int, int] = {}  # of those, by run
        self._heard: dict[int, float] = {}  # when nodes gave a sign of life
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

    def _unanswered(self, node_id: int) -> list[tuple[str, Message]]:
        """What a site has fetched and not answered."""
        return [
            (asked, message)
            for asked, message in self.message_ins_store.items()
            if message.metadata.dst_node_id == node_id
            and message.metadata.delivered_at
            and asked not in self.message_ins_id_to_message_res_id
        ]

    def _sessions(self, node_id: int) -> list[str]:
        return [session for session, upload in self._uploads.items() if upload.node == node_id]

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

    # ------------------------------------------------------------------ replies

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        with self.lock:
            asked = message.metadata.reply_to_message_id
            parts = sum(1 for _ in iterate_object_tree(object_tree)) if asked else 0
            if parts > OBJECTS:
                self._answer(asked, f"its reply has {parts} parts, and at most {OBJECTS} are taken")
                return False, []
            stored, missing = super().store_message_and_object_tree(message, object_tree, session_id)
            if stored and asked:  # sent once more, it takes the place of the first attempt
                self._uploads = {one: up for one, up in self._uploads.items() if up.asked != asked}
            if stored and asked and missing:
                self._uploads[session_id] = Upload(asked, message.metadata.src_node_id)
            elif stored and missing:
                self._pushed.setdefault(session_id, 0)
            return stored, missing

    def store_object(self, run_id: int, session_id: str, object_id: str, object_content: bytes) -> bool:
        with self.lock:
            upload, session = self._uploads.get(session_id), self._object_push_sessions.get(session_id)
            if session is None or (upload is None and session_id not in self._pushed):
                return False  # of a reply that was given up, or of none
            if upload is None:
                self._pushed[session_id] += len(object_content)
                self._largest[run_id] = max(self._largest.get(run_id, 0), self._pushed[session_id])
            else:
                upload.size += len(object_content)
                self._heard[upload.node] = time.monotonic()
                if upload.size > self._limit(run_id):
                    self._refuse(session_id, run_id)
                    return False
            stored = super().store_object(run_id, session_id, object_id, object_content)
            if session_id not in self._object_push_sessions:
                self._pushed.pop(session_id, None)
                if stored:  # all of it is here
                    size = max(unpacked(message, self.object_store) for message in session.root_object_ids)
                    return self._arrived(session_id, run_id, size)
            return stored

    def _arrived(self, session: str, run_id: int, size: int) -> bool:
        """What is whole has so many bytes when it is put together; False for a reply of too many."""
        if session not in self._uploads:
            self._largest[run_id] = max(self._largest[run_id], size)
        elif size > self._limit(run_id):
            self._refuse(session, run_id)
            return False
        else:
            del self._uploads[session]
        return True

    def _limit(self, run_id: int) -> int:
        """Bytes that a reply may have, on its way and put together."""
        return max(LEAST, TIMES * self._largest.get(run_id, 0))

    def _refuse(self, session: str, run_id: int) -> None:
        self._give_up(session, f"its reply is larger than {self._limit(run_id) / 2**20:.0f} MB")

    def get_object(self, run_id: int, object_id: str) -> bytes | None:
        with self.lock:  # always before the lock of push sessions, which Flower takes first here
            return super().get_object(run_id, object_id)

    def get_message_res(self, message_ids: set[str], run_id: int) -> list[Message]:
        """Replies that are whole: else whoever asks would wait in here for the rest of one, and hear of no other."""
        with self.lock:
            coming = set()
            for session, upload in list(self._uploads.items()):
                if session not in self._object_push_sessions or self._expired(session):
                    self._give_up(session, ABANDONED)
                elif self.nodes[upload.node].online_until < now().timestamp():
                    self._forget(session)  # Flower says of a dead site that it is
                else:
                    coming.add(upload.asked)
            return super().get_message_res(set(message_ids) - coming, run_id)

    def _expired(self, session: str) -> bool:
        return bool(self._object_push_sessions[session].expires_at <= now())

    def _forget(self, session: str) -> Upload:
        """Nothing of a reply is kept."""
        upload = self._uploads.pop(session)
        reply = self.message_ins_id_to_message_res_id.pop(upload.asked, None)
        if reply is not None:
            self.message_res_store.pop(reply, None)
            self.object_store.delete(reply)
        self._cleanup_push_session(session, cleanup_messages=False)
        return upload

    def _give_up(self, session: str, reason: str) -> None:
        self._answer(self._forget(session).asked, reason)

    def _answer(self, asked: str, reason: str) -> None:
        """An error in place of a site's reply."""
        message = self.message_ins_store.get(asked)
        if message is None or asked in self.message_ins_id_to_message_res_id:
            return
        answer = create_message_error_unavailable_res_message(message.metadata, "msg_unavail")
        answer.error = Error(ErrorCode.REPLY_MESSAGE_UNAVAILABLE, reason)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        self._store_generated_message(answer)
        self.message_res_store[answer.metadata.message_id] = answer
        self.message_ins_id_to_message_res_id[asked] = answer.metadata.message_id


def number_of(public_key: bytes) -> int:
    """A node's number, from its key; 0 and 1 are Flower's own."""
    return int.from_bytes(hashlib.sha256(public_key).digest()[:8], "big") | 2
