"""How many bytes the arrays of a message have once they are unpacked.

Flower sends an array in pieces of 5 MB and says which piece comes where; pieces of the same bytes are sent once. So a
few bytes that name one piece a thousand times are gigabytes to whoever puts the array together.
"""

import json

from flwr.supercore.constant import HEAD_BODY_DIVIDER, HEAD_VALUE_DIVIDER
from flwr.supercore.inflatable.inflatable_object import (
    get_object_children_ids_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.object_store import NoObjectInStoreError, ObjectStore

ARRAY = f"Array{HEAD_VALUE_DIVIDER}".encode()  # how an array begins, and nothing else does


def unpacked(message_id: str, store: ObjectStore) -> int:
    """Of all arrays of a message that is whole, in bytes."""
    try:
        parts = {part.object_id for part in iterate_object_tree(store.get_object_tree(message_id))}
    except NoObjectInStoreError:
        return 0
    contents = (store.get(part) or b"" for part in parts)
    return sum(_length(content, store) for content in contents if content.startswith(ARRAY))


def _length(array: bytes, store: ObjectStore) -> int:
    """0 of one that cannot be read: whoever unpacks it stops there, too, before it takes any memory."""
    try:
        sizes = [len(store.get(piece) or b"") for piece in get_object_children_ids_from_object_content(array)]
        _, _, body = array.partition(HEAD_BODY_DIVIDER)
        return sum(sizes[place] for place in json.loads(body)["arraychunk_ids"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return 0
