"""What a grid is, whoever its workers are: Flower's interface over messages that are dealt to them."""

from abc import abstractmethod
from collections.abc import Iterable
from uuid import uuid4

from flwr.app import Message, RecordDict
from flwr.supercore.run import Run

from fedbayes.launch.engine.deal import Deal
from fedbayes.launch.engine.worker import FIRST_NODE
from strategies.rounds.exchange import Nearby

CRASHED = 8  # Flower's number for a ClientApp whose process has died


class Pool(Nearby):
    """All nodes are there from the start. Replies are read when the ServerApp asks for them: there is no thread."""

    def __init__(self, clients: int) -> None:
        self._nodes = range(FIRST_NODE, FIRST_NODE + clients)
        self._deal = Deal()
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        taken = [message for message in messages if message.metadata.dst_node_id in self._nodes]
        for message in taken:
            message.metadata.__dict__["_message_id"] = uuid4().hex
            self._need(message)
        self._deal.add(taken)
        self._hand_out()
        return [message.metadata.message_id for message in taken]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._read(0.0)
        return (self._replies.pop(one) for one in message_ids if one in self._replies)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As Flower's own strategies call it; no client is ever late."""
        sent = list(self.push_messages(messages))
        while not self._replies.keys() >= set(sent):
            self._read(None)
        return list(self.pull_messages(sent))

    def wait(self, seconds: float) -> None:
        if not self._replies:
            self._read(seconds)

    def _settle(self, message: Message, reply: Message) -> None:
        self._replies[message.metadata.message_id] = reply
        self._drop(message)

    @abstractmethod
    def close(self) -> None:
        """No worker is left afterwards."""

    @abstractmethod
    def _need(self, message: Message) -> None:
        """The message will be handed out: what it carries must be kept."""

    @abstractmethod
    def _drop(self, message: Message) -> None:
        """It was answered: what it carried may go."""

    @abstractmethod
    def _hand_out(self) -> None:
        """Messages for workers that have time."""

    @abstractmethod
    def _read(self, seconds: float | None) -> None:
        """Take the replies that are there; if there are none, those that come first within so many seconds."""
