"""Flower's SuperNode as a site runs it: what the coordinator could not take in is sent once more, and again.

Flower waits for a coordinator that is away, but drops a reply for any error that the coordinator answers with; the
round then waits for nothing. A reply is the same message however often it is sent: the coordinator counts it once.

And of a reply whose ClientApp was killed while it handed it over, Flower would wait for the rest for ever, alive and
connected, and answer nothing any more; so it would for one that ended by itself without a reply, as when its executor
was killed. Here both waits have an end: the reply fails, and the next message is taken.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import nodestate_factory
from flwr.supernode.nodestate.in_memory_nodestate import CLIENT_APP_CRASHED_ERROR, InMemoryNodeState
from grpc import RpcError, StatusCode

from fedbayes.deploy.app_folder import install
from fedbayes.deploy.bundles import RefusedAppError, Trust

PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds before the second try, the third, …
HANDED = 30.0  # seconds without a part of a reply, after which its ClientApp will hand over no more
AGAIN = (StatusCode.UNKNOWN, StatusCode.INTERNAL, StatusCode.ABORTED, StatusCode.DEADLINE_EXCEEDED)


def main(trust: Trust) -> None:
    from flwr.supernode.cli import flower_supernode

    connect = start_client_internal._init_connection

    @contextmanager
    def patient(*words: Any, **named: Any) -> Iterator[Any]:
        with connect(*words, **named) as connection:
            parts: tuple[Any, ...] = connection
            number, receive, send, get_run, get_fab, *rest = parts
            yield number, receive, *map(again, (send, get_run, whole(get_fab, trust), *rest))

    push: Any = start_client_internal._push_messages

    def bounded(*, object_store: Any, **named: Any) -> None:
        push(object_store=Handed(object_store), **named)

    nodestate_factory.InMemoryNodeState = Answering  # type: ignore[attr-defined]
    start_client_internal._push_messages = bounded  # type: ignore[assignment]
    start_client_internal._init_connection = patient
    flower_supernode()


class Answering(InMemoryNodeState):
    """Flower's state of a site, which has an answer for a ClientApp that ended without one."""

    def finish_task(self, task_id: int, sub_status: str, details: str) -> bool:
        finished = super().finish_task(task_id, sub_status, details)
        if finished and sub_status == SubStatus.FAILED:
            runs = {
                one.run_id for one in self.get_tasks(task_ids=[task_id]) if one.type == TaskType.CLIENT_APP
            }
            self._store_error_replies(runs, CLIENT_APP_CRASHED_ERROR)  # of messages that have no reply
        return finished


class Handed:
    """Flower's store of objects, for one sending: a part that does not come is waited for, but not for ever."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._missed = ("", 0.0)  # which part, and since when

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, object_id: str) -> bytes | None:
        content: bytes | None = self._store.get(object_id)
        if content == b"":
            if self._missed[0] != object_id:
                self._missed = (object_id, time.monotonic())
            elif time.monotonic() - self._missed[1] > HANDED:
                raise TimeoutError("the ClientApp ended before it had handed its reply over")
        return content


def whole(get_fab: Callable[..., Any], trust: Trust) -> Callable[..., Any]:
    """The run's app, in its place before a ClientApp looks for it there.

    Of one that the site's owner does not trust nothing is unpacked: the executor (guard.py) refuses it with the reason.
    """

    def got(*words: Any) -> Any:
        fab = get_fab(*words)
        with suppress(RefusedAppError):
            if trust:
                trust.check(fab.content)
            install(fab.content)
        return fab

    return got


def again(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, up to so many times more where the coordinator had trouble of its own."""

    def called(*words: Any) -> Any:
        for pause in PAUSES:
            try:
                return call(*words)
            except RpcError as error:
                if error.code() not in AGAIN:
                    raise
                print(f"The coordinator answered {error.code().name}; sent again in {pause:g} s.", flush=True)
                time.sleep(pause)
        return call(*words)

    return called
