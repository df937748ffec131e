"""Whose a message is, for whom, and what it answers: as its sender tells of it, and as it stands inside.

A message comes in twice: what a site says of it, by which the coordinator goes, and the message itself among its
objects, by which the run goes once it has put them together. Flower does not compare the two.
"""

from typing import Any, NamedTuple

from flwr.app import Message
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.inflatable.inflatable_object import get_object_body
from google.protobuf.message import DecodeError


class Address(NamedTuple):
    """What tells one message's place in a run from another's."""

    run: int
    source: int  # node
    target: int  # node
    asked: str  # the id of the message that it answers; empty of one that asks

    @classmethod
    def of(cls, metadata: Any) -> "Address":
        """From metadata, as Flower keeps or sends them."""
        return cls(metadata.run_id, metadata.src_node_id, metadata.dst_node_id, metadata.reply_to_message_id)


def inside(content: bytes | None) -> Address | None:
    """What a message's own object says; None of what is no message."""
    try:
        return Address.of(ProtoMessage.FromString(get_object_body(content or b"", Message)).metadata)
    except (ValueError, DecodeError):
        return None
