"""A Flower grid without Ray, network or processes: it calls the ClientApp directly, one Context a node.

`interfere` lets a test play the hostile or dead client: it gets every reply with its site's number and may
change it, replace it, or swallow it by returning None. `shuffle` answers in another order.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app as client_app

Interfere = Callable[[int, Message, Message], Message | None]


class InProcessGrid(Grid):
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
            1000 + 7 * i: Context(1, 1000 + 7 * i, node_config, RecordDict(), config)
            for i, node_config in enumerate(configs)
        }
        self.offline: set[int] = set()
        self.sent: list[Message] = []

    def set_run(self, run: object) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node for i, node in enumerate(self.contexts) if i not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        messages = list(messages)
        if self.order:
            self.order.shuffle(messages)
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid4())
            self.sent.append(message)
            node = message.metadata.dst_node_id
            number = list(self.contexts).index(node)
            if number in self.offline:
                continue
            try:
                reply: Message | None = self.app(message, self.contexts[node])
            except Exception as error:  # as Flower does
                reply = Message(Error(1, f"{type(error)}:<'{error}'>"), reply_to=message)
            if self.interfere and reply is not None:
                reply = self.interfere(number, message, reply)
            if reply is not None:
                replies.append(reply)
        return replies
