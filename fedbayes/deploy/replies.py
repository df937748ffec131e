"""What sites reply, as the coordinator keeps it in memory: whole, bounded, and each site's own.

A reply is handed on when it is whole. One that is given up, or is far larger than what the run sends, on its way or put
together, or says inside that it is another's, is answered for at once: whoever waits for it learns why.
"""

import time
from collections import Counter
from dataclasses import dataclass
from logging import WARNING
from typing import Any, cast

from flwr.app import Error, Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import ObjectTree
from flwr.server.superlink.linkstate.in_memory_linkstate import InMemoryLinkState
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.supercore import log
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from fedbayes.deploy.address import Address, inside
from fedbayes.deploy.unpacked import unpacked

LEAST = 16 * 2**20  # bytes that any reply may have: reports, tallies, what tables say of themselves
TIMES = 4  # as large as the largest message of its run a reply may be
OBJECTS = 20_000  # parts of a reply; an array has one for every 5 MB
AGAIN = 60.0  # seconds from one warning of a kind to the next
ABANDONED = "its reply could not be sent as a whole"
UNSENT = "its reply could not be sent"
RESTARTED = "the site was started again before it had answered"
TWOFOLD = "its reply says two things of one of its parts"
FORGED = "its reply was made out in another's name"


@dataclass
class Upload:
    """A reply on its way in."""

    reply: str  # its id
    said: Address  # what its site has told of it
    size: int = 0

    @property
    def asked(self) -> str:
        return self.said.asked

    @property
    def node(self) -> int:
        return self.said.source


class Replies(InMemoryLinkState):
    """Flower's state, with an eye on what comes in."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._uploads: dict[str, Upload] = {}  # by push session
        self._pushed: dict[str, int] = {}  # bytes of a ServerApp's message, by push session
        self._largest: dict[int, int] = {}  # of those, by run
        self._heard: dict[int, float] = {}  # when nodes gave a sign of life
        self._warned: dict[
            tuple[str, str], float
        ] = {}  # until when a kind of forgery of somebody's is not told again
        self.forged: Counter[str] = Counter()  # what sites sent that was not their own, by name

    def store_message_and_object_tree(
        self, message: Message, object_tree: ObjectTree, session_id: str
    ) -> tuple[bool, list[str]]:
        with self.lock:
            said = Address.of(message.metadata)
            if said.asked and (reason := self._unfit(message, object_tree)):
                self._answer(said.asked, reason)
                return False, []
            stored, missing = super().store_message_and_object_tree(message, object_tree, session_id)
            if stored and said.asked:  # sent once more, it takes the place of the first attempt
                self._uploads = {one: up for one, up in self._uploads.items() if up.asked != said.asked}
                self._uploads[session_id] = Upload(message.metadata.message_id, said)
                if not missing:
                    self._arrived(session_id, said.run)
            elif stored and missing:
                self._pushed.setdefault(session_id, 0)
            return stored, missing

    def _unfit(self, reply: Message, tree: ObjectTree) -> str:
        """Why nothing of a reply is to come; empty where all is well.

        With another root, what is looked at would not be what the run is given; and what has another message among its
        parts takes that away when it goes. A part that is listed twice, with other parts of its own, would be kept as
        it came first: eighty of them can be more than any machine holds when they are put together.
        """
        root, parts = reply.metadata.message_id, list(iterate_object_tree(tree))
        messages = self.message_ins_store.keys() | self.message_res_store.keys()
        if tree.object_id != root or messages & ({part.object_id for part in parts} - {root}):
            self.tell_forged(reply.metadata.src_node_id, "a reply with another one's parts")
            return FORGED
        if len(parts) > OBJECTS:
            return f"its reply has {len(parts)} parts, and at most {OBJECTS} are taken"
        return TWOFOLD if self._twofold(parts) else ""

    def _twofold(self, parts: list[ObjectTree]) -> bool:
        """Whether one of these parts has other parts in another place, here or in what is kept already."""
        kept = cast(InMemoryObjectStore, self.object_store).store
        first: dict[str, list[str]] = {}
        for part in parts:
            listed = [child.object_id for child in part.children]
            known = kept[part.object_id].child_object_ids if part.object_id in kept else listed
            if first.setdefault(part.object_id, known) != listed:
                return True
        return False

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
                if stored and upload is not None:  # all of it is here
                    return self._arrived(session_id, run_id)
                if stored:
                    size = max(unpacked(message, self.object_store) for message in session.root_object_ids)
                    self._largest[run_id] = max(self._largest[run_id], size)
            return stored

    def _arrived(self, session: str, run_id: int) -> bool:
        """Whether a reply that is whole is its site's own, and not too large when it is put together."""
        upload = self._uploads[session]
        if inside(self.object_store.get(upload.reply)) != upload.said:
            self.tell_forged(upload.node, "a reply that says inside that it is another's")
            self._give_up(session, FORGED)
        elif unpacked(upload.reply, self.object_store) > self._limit(run_id):
            self._refuse(session, run_id)
        else:
            del self._uploads[session]
            return True
        return False

    def sender(self, session: str) -> int | None:
        """The node whose message comes in so; None where none does."""
        with self.lock:
            upload = self._uploads.get(session)
            if upload is not None:
                return upload.node
            return SUPERLINK_NODE_ID if session in self._pushed else None

    def tell_forged(self, node_id: int, what: str) -> None:
        """Count what a site has sent that is not its own, and say so, each kind once a minute: logs have an end."""
        node = self.nodes.get(node_id)
        who = "Somebody without a registered key" if node is None else f"Site {node.name}"
        with self.lock:
            if node is not None:
                self.forged[str(node.name)] += 1
            if time.monotonic() < self._warned.get((who, what), 0.0):
                return
            self._warned[who, what] = time.monotonic() + AGAIN
        log(WARNING, "%s has sent %s; it was refused.", who, what)

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
