"""A worker on a node of a Ray cluster: it does what a worker of this machine does (worker.py).

Nothing but Python's own modules is imported here until it is needed: a node that lacks PyTorch, Flower or another
package can so be asked, and says which.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Error, Metadata


@dataclass(frozen=True)
class Post:
    """What an actor is told of the run."""

    clients: int
    threads: int
    out_dir: str
    token_file: str  # below out_dir
    token: str
    data: tuple[str, ...] = ()  # files and folders that clients read


class Actor:
    """A worker of the cluster."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def problem(self) -> str:
        """Why clients cannot be served here, in words; nothing if they can."""
        import ray

        here = f"The node {ray.util.get_node_ip_address()} of the cluster"  # type: ignore[no-untyped-call]
        try:
            import torch

            import client_app.app  # noqa: F401
        except (ImportError, OSError) as error:  # a library of PyTorch's that the system lacks is the latter
            lacking = getattr(error, "name", None)
            told = f"lacks the package {lacking}" if lacking else f"cannot run clients ({error})"
            return f"{here} {told}; fedbayes' dependencies must be installed on all nodes."
        torch.set_num_threads(self._post.threads)
        return self._unseen(here)

    def _unseen(self, here: str) -> str:
        try:
            seen = Path(self._post.token_file).read_text("utf-8")
        except OSError:
            seen = ""
        if seen != self._post.token:
            return (
                f"{here} does not see the folder {self._post.out_dir}; out-dir must be on a path that all nodes "
                "share."
            )
        for place in self._post.data:
            if not Path(place).exists():
                return f"{here} does not see {place}; data must be on a path that all nodes share."
        return ""

    def answer(
        self, metadata: "Metadata", others: Mapping[str, Any], names: list[str], *arrays: "ArrayRecord"
    ) -> tuple["Metadata", "Error | None", dict[str, Any], float]:
        """The reply in parts, since Flower's messages as such cannot be pickled; and the seconds that it took."""
        from flwr.app import Message, RecordDict

        from fedbayes.launch.engine.worker import answer

        began, content = time.monotonic(), {**others, **dict(zip(names, arrays, strict=True))}
        message = Message(RecordDict(content), metadata=metadata)  # type: ignore[call-overload]
        reply = answer(message, self._post.clients)
        failed = reply.has_error()
        said = (reply.error, {}) if failed else (None, dict(reply.content))
        return reply.metadata, *said, time.monotonic() - began
