"""Nodes that are no site of the run yet: whose answer to hello is under way, and who is asked again, and when.

Nobody stays out for good: a site that was killed while it answered, or whose owner has mended its data, is asked again,
after a pause that doubles each time, or at once when it has been away and is back. A run under way waits for none of
them.
"""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.serverapp import Grid

from strategies.rounds.exchange import Exchange, now
from strategies.rounds.late import Late

FIRST, LONGEST = 10.0, 600.0  # seconds until a node is asked again: after its first failure, and at most
NEVER = float("inf")


class Greetings:
    """What became of hello at each node that is no site; `again`: whether nodes that failed are asked again."""

    def __init__(self, again: bool) -> None:
        self._again = again
        self._under_way: dict[int, Exchange[dict[str, Any]]] = {}  # one message each; nobody waits for it
        self._late = Late()  # nodes that were silent at the start; they are asked anew when they answer
        self._failures: dict[int, int] = {}
        self._pause: dict[int, float] = {}  # until when a node is left alone
        self.silent: set[int] = set()  # of those, who said nothing at all: it may be a matter of a moment

    @property
    def awaited(self) -> bool:
        """Whether somebody is reading its data, as far as one knows."""
        return bool(self._under_way)

    def due(self, grid: Grid, nodes: set[int], settled: set[int]) -> list[int]:
        """Who of these is to be asked now; those who went away are new when they come back."""
        for known in (self._under_way, self._failures, self._pause):
            for node in known.keys() - nodes:
                del known[node]
        self.silent &= nodes
        self._late.waiting = {node: one for node, one in self._late.waiting.items() if int(node) in nodes}
        self._late.hear(grid)
        busy = settled | self._under_way.keys() | set(map(int, self._late.waiting))
        return sorted(node for node in nodes - busy if self._pause.get(node, 0.0) <= now())

    def begin(self, grid: Grid, one: Callable[[int], Exchange[dict[str, Any]]], nodes: Iterable[int]) -> None:
        """Ask these nodes; `answered` says when they have answered."""
        for node in nodes:
            self._under_way[node] = one(node)
            self._under_way[node].push(grid)

    def answered(self, grid: Grid) -> list[Exchange[dict[str, Any]]]:
        """The hellos that are over by now, with an answer or without."""
        over = [node for node, one in self._under_way.items() if one.look(grid)]
        return [self._under_way.pop(node) for node in over]

    def late(self, one: Exchange[dict[str, Any]], until: float) -> None:
        """The cut-off has left these behind, and they may still answer."""
        self._late.note(one.unanswered, until)

    def failed(self, node: int, silent: bool) -> None:
        """It did not answer usably: it is asked again after a while, unless its answer may still come."""
        if str(node) in self._late.waiting:
            return
        before = self._failures.get(node, 0)
        self._failures[node] = before + 1
        self._pause[node] = now() + min(FIRST * 2.0**before, LONGEST) if self._again else NEVER
        self.silent = self.silent | {node} if silent else self.silent - {node}
