"""A Flower message in two parts: what is said of it, for a pipe, and the bytes of its arrays, for shared memory."""

import pickle
from collections.abc import Callable
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict

from fedbayes.launch.engine.memory import Memory, Place

Lines = list[tuple[str, str, tuple[int, ...], str, Place]]  # key, dtype, shape, stype and place of each array
Put = Callable[[ArrayRecord], tuple[int, Lines]]  # writes a record: under which number, and where
Take = Callable[[int, Lines], ArrayRecord]  # reads it again


def pack(message: Message, put: Put, seconds: float = 0.0) -> bytes:
    """What a pipe carries, with the seconds that a reply took."""
    if message.has_error():
        return pickle.dumps((seconds, message.metadata, message.error, []))
    arrays = message.content.array_records
    records = [
        (name, *put(arrays[name])) if name in arrays else (name, None, one)
        for name, one in message.content.items()
    ]
    return pickle.dumps((seconds, message.metadata, None, records))


def unpack(data: bytes, take: Take) -> tuple[Message, float]:
    """The message again and its seconds. What is unpickled was pickled by another process of the same program."""
    seconds, metadata, error, records = pickle.loads(data)
    if error is not None:
        return Message(error, metadata=metadata), seconds  # type: ignore[call-overload]
    content: dict[str, Any] = {
        name: one if number is None else take(number, one) for name, number, one in records
    }
    return Message(RecordDict(content), metadata=metadata), seconds  # type: ignore[call-overload]


def store(record: ArrayRecord, memory: Memory, start: int) -> Lines:
    """Write a record's arrays one after the other."""
    lines: Lines = []
    for key, array in record.items():
        place = memory.write(start, array.data)
        lines.append((key, array.dtype, array.shape, array.stype, place))
        start += len(array.data)
    return lines


def fetch(lines: Lines, memory: Memory) -> ArrayRecord:
    return ArrayRecord(
        {key: Array(dtype, shape, stype, memory.read(place)) for key, dtype, shape, stype, place in lines}
    )


def size(record: ArrayRecord) -> int:
    return sum(len(array.data) for array in record.values())
