"""Messages of a run, made and pushed by hand as a ServerApp and sites do."""

import time
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import NOOP_FLWR_AID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from fedbayes.deploy.linkstate import MemoryState


def begin() -> MemoryState:
    return MemoryState(NoOpFederationManager(), ObjectStoreFactory().store())


def new_run(state: MemoryState) -> int:
    return state.create_run(
        None, None, "hash", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )


def message(run: int, source: int, target: int, reply_to: str, size: int, what: Any = None) -> Message:
    """A text of so many bytes, or what is given; no reply may be valid for longer than what it answers."""
    ttl = 20.0 if reply_to else 50.0
    metadata = Metadata(run, "", source, target, reply_to, "1", time.time(), ttl, "train")
    made = make_message(metadata, content=RecordDict({"a": what or ConfigRecord({"text": "x" * size})}))
    made.metadata.__dict__["_message_id"] = made.object_id
    return made


def push(state: MemoryState, run: int, sent: Message, parts: int | None = None) -> list[bool]:
    """As a site or a ServerApp does; only the first `parts` of it."""
    session = state.start_session(run)
    _, missing = state.store_message_and_object_tree(sent, get_object_tree(sent), session)
    contents = contents_of(sent, missing)
    return [
        state.store_object(run, session, name, content) for name, content in list(contents.items())[:parts]
    ]


def contents_of(sent: Message, missing: list[str]) -> dict[str, bytes]:
    return {name: one.deflate() for name, one in get_all_nested_objects(sent).items() if name in missing}


def answers(state: MemoryState, run: int, asked: Message) -> list[Message]:
    return state.get_message_res({asked.metadata.message_id}, run)
