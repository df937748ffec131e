"""A Flower grid without Ray, network or processes: it calls the ClientApp directly, one Context a node.

`interfere` lets a test play the hostile or dead client: it gets every reply with its site's number and may
change it, replace it, or swallow it by returning None. `shuffle` answers in another order.
"""

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app as client_app

Interfere = Callable[[int, Message, Message], Message | None]


class InProcessGrid(Grid):
    NODES = range(1000, 8000, 7)  # the nodes' numbers

    def __init__(
        self,
        config: dict[str, Any],
        clients: int,
        interfere: Interfere | None = None,
        shuffle: int | None = None,
        node_configs: list[dict[str, Any]] | None = None,
    ) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app: ClientApp = client_app
        self.interfere = interfere
        self.order = random.Random(shuffle) if shuffle is not None else None
        configs = node_configs or [{"partition-id": i, "num-partitions": clients} for i in range(clients)]
        self.contexts = {
            node: Context(1, node, node_config, RecordDict(), config)
            for node, node_config in zip(self.NODES, configs, strict=False)
        }
        self.offline: set[int] = set()
        self.sent: list[Message] = []
        self.replies: dict[str, Message] = {}

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("Nothing here calls it.")

    def get_node_ids(self) -> Iterable[int]:
        return [node for i, node in enumerate(self.contexts) if i not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Every client answers at once, one after the other; `pull_messages` hands the replies out."""
        messages = list(messages)
        if self.order:
            self.order.shuffle(messages)
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.sent.append(message)
            reply = self._answer(message)
            if reply is not None:
                self.replies[message.metadata.message_id] = reply
        return [message.metadata.message_id for message in messages]

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        number = list(self.contexts).index(node)
        if number in self.offline:
            return None
        try:
            reply = self.app(message, self.contexts[node])
        except Exception as error:  # as Flower does
            reply = Message(Error(1, f"{type(error)}:<'{error}'>"), reply_to=message)
        return self.interfere(number, message, reply) if self.interfere else reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        ready = [one for one in message_ids if one in self.replies]
        if self.order:
            self.order.shuffle(ready)
        return [self.replies.pop(one) for one in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise AssertionError("Nothing here calls it.")


def sites(folder: Path, count: int = 4, **config: Any) -> InProcessGrid:
    """As `fedbayes site` starts them: each with a name and a disk of its own."""
    nodes = [
        {
            "site-id": f"site-{i}",
            "state-dir": str(folder / f"disk-{i}"),
            "partition-id": i,
            "num-partitions": count,
            **config,
        }
        for i in range(count)
    ]
    return InProcessGrid({}, count, node_configs=nodes)


class Clock:
    """Time in which sleeping costs nothing: a silent client's ten minutes are over at once."""

    def __init__(self) -> None:
        self.slept = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
