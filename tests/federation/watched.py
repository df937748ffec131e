"""A federation in this process that notes what each site adds to a secure sum, and what the server makes of it."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from inprocess import InProcessGrid

from bayes_core import masks

SITES = 6  # of which four are the least


class Watched(InProcessGrid):
    """Notes each site's steps of fixed point; some train replies are lost, others late, and some sites then silent."""

    def __init__(self, patch: pytest.MonkeyPatch, sites: int = SITES) -> None:
        super().__init__({}, sites)
        self.steps: dict[int, dict[int, Any]] = {}  # by round and site
        self.sums: list[Any] = []  # that the server has opened
        self.lost: set[tuple[int, int]] = set()  # (site, round): its upload never arrives
        self.late: set[tuple[int, int]] = set()  # it arrives when the round is over
        self.silent: set[tuple[int, int]] = set()  # the site does not help to unmask
        self.asked: list[tuple[int, Message]] = []
        self.withheld: dict[str, Message] = {}
        self.latest: Any = None
        narrow, from_narrow = masks.narrow, masks.from_narrow

        def note(steps: Any) -> Any:
            self.latest = steps
            return narrow(steps)

        def opened(total: Any, *arguments: Any) -> Any:
            self.sums.append(total.copy())
            return from_narrow(total, *arguments)

        patch.setattr(masks, "narrow", note)
        patch.setattr(masks, "from_narrow", opened)
        self.interfere = self.watch

    def watch(self, site: int, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == "query.unmask":
            number = int(message.content["unmask"]["round"])  # type: ignore[arg-type]
            self.asked.append((site, message))
            self.replies |= self.withheld
            self.withheld = {}
            return None if (site, number) in self.silent else reply
        if message.metadata.message_type != "train":
            return reply
        number = int(message.content["exchange"]["round"])  # type: ignore[arg-type]
        self.steps.setdefault(number, {})[site] = self.latest
        if (site, number) in self.late:
            self.withheld[message.metadata.message_id] = reply
        return None if (site, number) in self.lost | self.late else reply

    def plain(self, number: int, *without: int) -> Any:
        """The sum of the steps themselves, modulo 2³²."""
        steps = [one for site, one in self.steps[number].items() if site not in without]
        return np.sum(steps, axis=0).astype(np.uint32)
