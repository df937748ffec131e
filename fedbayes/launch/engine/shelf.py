"""What the server sends to its workers: a record is written once, whoever gets it, and stays while it is needed."""

from dataclasses import dataclass

from flwr.app import ArrayRecord

from fedbayes.launch.engine.memory import Memory
from fedbayes.launch.engine.parcel import Lines, size, store


@dataclass
class Item:
    """One record."""

    number: int
    record: ArrayRecord
    size: int
    needed: int = 0  # by so many messages that are not answered yet
    start: int = 0
    lines: Lines | None = None  # where it stands, once it does


class Shelf:
    """Records in shared memory."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._items: dict[
            int, Item
        ] = {}  # by the id of the record, which stays the record's own while it is kept
        self._count = 0

    def need(self, record: ArrayRecord) -> None:
        """One more message will carry this record."""
        if id(record) not in self._items:
            self._count += 1
            self._items[id(record)] = Item(self._count, record, size(record))
        self._items[id(record)].needed += 1

    def put(self, record: ArrayRecord) -> tuple[int, Lines]:
        """Its number, and where it stands from now on."""
        item = self._items[id(record)]
        if item.lines is None:
            item.start = self._room(item.size)
            item.lines = store(record, self._memory, item.start)
        return item.number, item.lines

    def drop(self, record: ArrayRecord) -> None:
        """One message less."""
        item = self._items[id(record)]
        item.needed -= 1
        if not item.needed:
            del self._items[id(record)]

    def _room(self, size: int) -> int:
        """The first gap of so many bytes."""
        start = 0
        taken = sorted((item.start, item.size) for item in self._items.values() if item.lines is not None)
        for begin, length in taken:
            if begin - start >= size:
                break
            start = begin + length
        return start
