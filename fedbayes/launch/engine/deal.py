"""Which client a worker serves next: one whose data it has, the longest first, and those of others when it has none."""

from collections.abc import Iterable

from flwr.app import Message


class Deal:
    """The messages that no worker has yet."""

    def __init__(self) -> None:
        self._homes: dict[int, int] = {}  # node → the seat of the worker that served it last
        self._seconds: dict[
            tuple[int, str], float
        ] = {}  # node and kind of message → how long it took last time
        self._waiting: dict[int | None, list[Message]] = {}  # by home, the longest last

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            home = self._homes.get(message.metadata.dst_node_id)
            self._waiting.setdefault(home, []).append(message)
        for waiting in self._waiting.values():
            waiting.sort(key=self._length)

    def take(self, seat: int) -> Message:
        """The next one for this worker: its own, else nobody's, else of the one that has most to do."""
        own, nobody = self._waiting.get(seat), self._waiting.get(None)
        waiting = own or nobody or max(self._waiting.values(), key=lambda some: sum(map(self._length, some)))
        message = waiting.pop()
        self._homes[message.metadata.dst_node_id] = seat
        return message

    def took(self, message: Message, seconds: float) -> None:
        self._seconds[_kind(message)] = seconds

    def _length(self, message: Message) -> float:
        return self._seconds.get(_kind(message), 1.0)


def _kind(message: Message) -> tuple[int, str]:
    return message.metadata.dst_node_id, message.metadata.message_type
