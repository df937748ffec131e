"""One exchange with the sites: who is asked to do what, messages out, a few at a time, each reply in as it arrives.

Flower's own `send_and_receive` returns when the last reply is there, so that all of them lie in memory at once, and
looks for replies every 0.1 s in a simulation and every 3 s in a deployment. And a simulation looks through nodes ×
messages for the next one to hand out, ten times a second: with 1000 clients, 100 messages under way cost a third of a
second each time. So here replies are handed on one by one, and a simulation is given no more than it needs. A grid that
says itself when a reply is there (`Nearby`) is neither asked in vain nor spared.
"""

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError
from torch import Tensor

from fedbayes.protocol.messages import EVALUATE, EXCHANGE, RESERVED, ROUND, TRAIN, UPLOAD
from fedbayes.protocol.streams import stream
from strategies.rounds.replies import BadReply, read_reply, reason_of, unforeseen

if TYPE_CHECKING:
    from strategies.rounds.roster import Site

# Looking for replies: soon after the last one, then less and less often, so that waiting costs little either way. Not
# sooner than that: each look takes processor time from the clients of a simulation.
SOONEST, LATEST, SHARE = 0.03, 1.0, 0.03  # seconds, seconds, and of the time since the last reply
PAIRS = 6000  # of nodes and messages that a simulation looks through in about 0.02 s
TOGETHER = 8  # replies that may be in memory at once
# What a reply that cannot be unpacked makes the grid raise; that the coordinator itself cannot be reached is another
# matter, and ends the run.
UNPACKABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    DecodeError,
)
FOR_EACH_CPU = 4  # messages under way, so that no actor waits for the next look
RAISED = (1, 2)  # Flower's numbers for what a ClientApp raised, when it was loaded or called
Task = dict[str, bool]  # what a site is asked to do: TRAIN, UPLOAD, EVALUATE
SOONEST_CUT = 30.0  # seconds that everybody has, however soon the others answer
GRACE = 10.0  # seconds that a message outlives its exchange: the grid fails on one that expires while it is awaited
Read = TypeVar("Read")  # what a reader makes of a reply
NEVER = 10 * 365 * 24 * 3600.0  # seconds until a simulated client is late


class Nearby(Grid):
    """A grid that has started its clients itself, on this machine: it knows all of them, and when they answer."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Return when a reply can be pulled, or after so many seconds."""


@dataclass
class Replies(Generic[Read]):
    """What came back from an exchange, by site id; without the arrays that were used up on arrival."""

    content: dict[str, Read] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


class Exchange(Generic[Read]):
    """The messages of one exchange by site, and what became of them; `reader` makes of a reply what it says."""

    def __init__(
        self,
        messages: Mapping[str, Message],
        timeout: float,
        reader: Callable[[RecordDict], Read] = read_reply,  # type: ignore[assignment]
        cutoff: float = 0.0,
        enough: int = 1,
        soonest: float = SOONEST_CUT,
    ) -> None:
        """`cutoff`: once `enough` have answered, nobody is waited for beyond so many times their median; 0 = never.

        Everybody has `soonest` seconds.
        """
        self.messages = dict(sorted(messages.items()))
        self.timeout = timeout
        self.cutoff, self.enough, self.soonest = cutoff, enough, soonest
        self.reader = reader
        self.started = time.monotonic()
        self.replies: Replies[Read] = Replies()
        self.bytes_up = 0
        self.bytes_down = 0
        self.unanswered: dict[str, str] = {}  # site → message id, of those that the cut-off has left behind
        self._sites: dict[str, str] = {}  # message id → site, of the messages under way
        self._raised: dict[str, str] = {}  # what ClientApps raised, by site
        self._times: list[float] = []  # that answers have taken

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def raised(self) -> set[str]:
        """The sites whose ClientApp ended in an exception."""
        return set(self._raised)

    def common_error(self, known: int) -> str:
        """What every site that was asked raised, all of them the same: another attempt would not help.

        Empty where they differ, or where one of several `known` sites may have had bad luck.
        """
        alike = len(set(self._raised.values())) == 1 and len(self._raised) == len(self.messages)
        return next(iter(self._raised.values())) if alike and len(self._raised) >= min(known, 2) else ""

    def conduct(self, grid: Grid) -> Iterator[Message]:
        """Send the messages and give each reply as it arrives, until all are there or the time is up."""
        waiting = list(reversed(self.messages))
        limit = under_way_at_most(grid, len(waiting))
        under_way: set[str] = set()
        quiet_since = time.monotonic()
        while waiting or under_way:
            sending = [waiting.pop() for _ in range(min(limit - len(under_way), len(waiting)))]
            under_way |= self._push(grid, sending)
            for reply in self._pull(grid, sorted(under_way)):
                under_way.discard(reply.metadata.reply_to_message_id)
                quiet_since = time.monotonic()
                if not reply.has_error():
                    self._times.append(self.seconds)
                yield reply
            under_way &= self._sites.keys()
            now = time.monotonic()
            if self._is_over():
                return
            if under_way and isinstance(grid, Nearby):
                grid.wait(LATEST)
            elif under_way:
                time.sleep(min(max(SOONEST, SHARE * (now - quiet_since)), LATEST))

    def push(self, grid: Grid) -> None:
        """Send all messages and do not wait; `look` says what became of them."""
        self._push(grid, list(self.messages))

    def look(self, grid: Grid) -> bool:
        """Take in what has come by now; whether all is there, or the time is up."""
        for reply in self._pull(grid, sorted(self._sites)):
            self._taken(reply)
        over = not self._sites or self.seconds > self.timeout
        if over:
            self._finish()
        return over

    def _is_over(self) -> bool:
        """Whether the time is up, or most have answered and the rest is late by far."""
        if self.seconds > self.timeout:
            return True
        if not self.cutoff or len(self._times) < self.enough:
            return False
        if late := self.seconds > max(self.cutoff * median(self._times), self.soonest):
            self.unanswered = {site: message for message, site in self._sites.items()}
        return late

    def _push(self, grid: Grid, sites: list[str]) -> set[str]:
        """The ids under which replies can be had; a grid leaves out a message that it cannot deliver."""
        if not sites:
            return set()
        messages = [self.messages[site] for site in sites]
        accepted = set(grid.push_messages(messages))
        for site, message in zip(sites, messages, strict=True):
            if message.metadata.message_id in accepted:
                self._sites[message.metadata.message_id] = site
                self.bytes_down += array_bytes(message.content)
            else:
                self.replies.failures[site] = "its message could not be delivered"
        return accepted & set(self._sites)

    def _pull(self, grid: Grid, message_ids: list[str]) -> Iterator[Message]:
        """The replies that are there; few at a time, so that a deployment's do not all come into memory together.

        Where one of the few cannot be unpacked, each is pulled alone, and its sender stands alone with it.
        """
        size = max(len(message_ids), 1) if isinstance(grid, Nearby) else TOGETHER
        for start in range(0, len(message_ids), size):
            some = message_ids[start : start + size]
            try:
                yield from grid.pull_messages(some)
            except UNPACKABLE as error:
                if len(some) > 1:
                    yield from (reply for one in some for reply in self._pull(grid, [one]))
                else:
                    self.replies.failures[self._sites.pop(some[0])] = unforeseen(error)

    def read(self, replies: Iterable[Message]) -> Iterator[tuple[str, Read]]:
        """(site, what it says) of every reply that can be read; at the end, who did not answer is known.

        Sites are recognised by the message they reply to: a dead node's error comes from the SuperLink, not
        from the node.
        """
        for reply in replies:
            site = self._taken(reply)
            if site in self.replies.content:
                yield site, self.replies.content[site]
        self._finish()

    def _taken(self, reply: Message) -> str:
        """The site whose reply it is, which now is among the replies or the failures."""
        site = self._sites.pop(reply.metadata.reply_to_message_id, "")
        if not site:
            return ""
        if reply.has_error():
            self.replies.failures[site] = reason_of(reply)
            if reply.error.code in RAISED:
                self._raised[site] = self.replies.failures[site]
            return site
        try:
            self.bytes_up += array_bytes(reply.content)
            found = self.reader(reply.content)
        except Exception as error:  # whatever it is, it is this site's alone
            self.replies.failures[site] = str(error) if isinstance(error, BadReply) else unforeseen(error)
            return site
        for name in list(reply.content.array_records):
            del reply.content[name]  # whoever asked for them has them now, and may forget them
        self.replies.content[site] = found
        return site

    def _finish(self) -> None:
        """Who did not answer has failed."""
        for site in self.messages:
            if site not in self.replies.content:
                waited = self.seconds if self.unanswered else self.timeout
                self.replies.failures.setdefault(site, f"no answer within {waited:.0f} s")
        self.replies = Replies(_sorted(self.replies.content), _sorted(self.replies.failures))


def held(one: Exchange[Read], grid: Grid) -> Exchange[Read]:
    """A whole exchange of small messages."""
    for _ in one.read(one.conduct(grid)):
        pass
    return one


def under_way_at_most(grid: Grid, messages: int) -> int:
    """All messages at once, except in Flower's simulation of many clients: there, as many as its actors can need."""
    if isinstance(grid, Nearby) or not is_simulation(grid):
        return messages
    nodes = len(list(grid.get_node_ids()))
    return max(FOR_EACH_CPU * (os.cpu_count() or 1), PAIRS // max(nodes, 1))


def is_simulation(grid: Grid) -> bool:
    """Whether the clients are processes on this machine, all beside the server."""
    return isinstance(grid, Nearby) or getattr(grid.run, "primary_task_type", "") == "flwr-simulation"


def patience(grid: Grid, seconds: float) -> float:
    """How long a client may take. A simulated one is never late: on a busy machine all of them are slow, and whoever
    was dropped for it would change the figures. One that dies is told by the grid."""
    return NEVER if is_simulation(grid) else seconds


def _sorted(by_site: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(by_site.items()))


def sample(online: Sequence[str], share: int, *words: int | str) -> list[str]:
    """`share` of the sites that can be reached (0 = all), by a generator from these words."""
    if share == 0 or share >= len(online):
        return list(online)
    chosen = torch.randperm(len(online), generator=stream(*words))[:share]
    return sorted(online[i] for i in chosen.tolist())


def tasks_of(
    sampled: Sequence[str], online: Sequence[str], upload: bool, evaluate: bool, train_all: bool
) -> dict[str, Task]:
    """Train and upload, train only, or (when due) evaluate only; a site with nothing to do is left out."""
    tasks = {site: {TRAIN: True, UPLOAD: upload, EVALUATE: evaluate} for site in sampled}
    if train_all or evaluate:
        rest = {TRAIN: train_all, UPLOAD: False, EVALUATE: evaluate}
        tasks |= {site: rest for site in online if site not in tasks}
    return tasks


def compose(
    send: Callable[[str], Mapping[str, Tensor]],
    encode: Callable[[str, Tensor], ArrayRecord],
    tasks: Mapping[str, Task],
    said: Mapping[str, str | int | bool],
    sites: Mapping[str, "Site"],
    timeout: float,
) -> dict[str, Message]:
    """Every site gets what the method sends it; a tensor that several sites get is encoded once.

    `said` is what all of them are told: the run's name and UUID, its settings, the round.
    """
    # With the tensor itself: one that was made for a single site would leave its id to the next one's.
    encoded: dict[tuple[str, int], tuple[Tensor, ArrayRecord]] = {}
    messages = {}
    for site, task in tasks.items():
        records: dict[str, Any] = {}
        for name, tensor in send(site).items():
            if (name, id(tensor)) not in encoded:
                if name in RESERVED:
                    raise ValueError(
                        f'A method cannot send a tensor named "{name}": messages use that name themselves.'
                    )
                encoded[name, id(tensor)] = tensor, encode(name, tensor)
            records[name] = encoded[name, id(tensor)][1]
        messages[site] = Message(
            RecordDict({**records, EXCHANGE: ConfigRecord({**said, **task})}),
            dst_node_id=sites[site].node,
            message_type="train" if task[TRAIN] else "evaluate",
            group_id=str(said[ROUND]),
            ttl=timeout + GRACE,
        )
    return messages


def now() -> float:
    """Seconds on the clock by which exchanges are timed."""
    return time.monotonic()


def pause(seconds: float) -> None:
    """Sleep, on that clock."""
    time.sleep(seconds)


def array_bytes(content: RecordDict) -> int:
    """Bytes of the arrays in a message: what grows with the model."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())
