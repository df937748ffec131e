"""Orderings of figures that can be looked up: what a statement asks for, and how it stands."""

from collections.abc import Callable
from dataclasses import dataclass

from fedbayes.reproduce import paper


@dataclass(frozen=True)
class Figure:
    """A figure of a cell: `pm`, `gm`, `pm_nnr`, or `entropy`; `at` a round, or the last."""

    what: str
    name: str
    figure: str
    at: int | None = None

    @property
    def method(self) -> str:
        return self.name.split("/")[2]


@dataclass(frozen=True)
class Lead:
    """By how much one figure is ahead of the best of others."""

    of: Figure
    before: tuple[Figure, ...]


Side = Figure | Lead | float
Look = Callable[[Figure], float | None]


@dataclass(frozen=True)
class Check:
    """The best of `higher` is above all of `lower`, in one place; `every`: each of `higher` is."""

    place: str
    higher: tuple[Side, ...]
    lower: tuple[Side, ...]
    every: bool = False
    slack: float = 0.0  # points that `lower` may be ahead

    def holds(self, look: Look) -> bool | None:
        """None while a figure is missing that could still decide it."""
        high, low = ([_value(side, look) for side in sides] for sides in (self.higher, self.lower))
        known_high, known_low = ([value for value in side if value is not None] for side in (high, low))
        complete = len(known_high) == len(high) and len(known_low) == len(low)
        if not known_high or not known_low:
            return None
        best = min(known_high) if self.every else max(known_high)
        wins = best + self.slack > max(known_low)
        if not wins and (self.every or len(known_high) == len(high)):
            return False
        return wins if complete else None

    def where(self, look: Look) -> str:
        """The place, and who is ahead there by how much, where it is another method."""
        ours = [side for side in self.higher if isinstance(side, Figure)]
        theirs = {side: look(side) for side in self.lower if isinstance(side, Figure)}
        rivals = {side: value for side, value in theirs.items() if value is not None}
        mine = [value for side in ours if (value := look(side)) is not None]
        if self.every or not rivals or not mine:
            return self.place
        first = max(rivals, key=lambda side: rivals[side])
        if first.method in {side.method for side in ours}:
            return self.place
        return f"{self.place} ({first.method} +{rivals[first] - max(mine):.2f})"


@dataclass(frozen=True)
class Claim:
    """A sentence, and the places in which it can be checked."""

    what: str
    says: str
    checks: tuple[Check, ...]
    most: bool = False  # it is said of most places only


def _value(side: Side, look: Look) -> float | None:
    if isinstance(side, Figure):
        return look(side)
    if isinstance(side, Lead):
        ahead, others = look(side.of), [look(one) for one in side.before]
        known = [value for value in others if value is not None]
        return None if ahead is None or len(known) < len(others) else ahead - max(known)
    return side


@dataclass(frozen=True)
class Verdict:
    """How a claim stands."""

    claim: Claim
    ours: tuple[bool | None, ...]  # of each of its checks
    paper: tuple[bool | None, ...]
    against: tuple[str, ...]  # where it does not hold, and who is ahead there

    @property
    def mark(self) -> str:
        """`holds`, `holds so far`, `does not hold` or `not run yet`."""
        right, wrong = self.ours.count(True), self.ours.count(False)
        if not right + wrong:
            return "not run yet"
        open_ = len(self.ours) - right - wrong
        if self.claim.most:
            verdict = "holds" if 2 * right > right + wrong else "does not hold"
        else:
            verdict = "does not hold" if wrong else "holds"
        return f"{verdict} so far" if open_ and verdict == "holds" else verdict

    @property
    def counts(self) -> str:
        """In how many places."""
        right, wrong = self.ours.count(True), self.ours.count(False)
        missing = len(self.ours) - right - wrong
        rest = f", {missing} not run yet" if missing else ""
        return f"{right} of {right + wrong}{rest}" if right + wrong else f"{missing} not run yet"

    @property
    def in_paper(self) -> str:
        """In how many places it holds by the paper's own figures."""
        right, wrong = self.paper.count(True), self.paper.count(False)
        return f"{right} of {right + wrong}" if right + wrong else "–"


def verdict(claim: Claim, ours: Look, theirs: Look) -> Verdict:
    held = tuple(check.holds(ours) for check in claim.checks)
    return Verdict(
        claim,
        held,
        tuple(check.holds(theirs) for check in claim.checks),
        tuple(check.where(ours) for check, one in zip(claim.checks, held, strict=True) if one is False),
    )


def papers_own(figure: Figure) -> float | None:
    """The paper's figure, where it gives the number."""
    table = "table1" if figure.what == "figures" else figure.what
    return None if figure.at is not None else paper.figures(table).get(figure.name, {}).get(figure.figure)


def figures_in(claim: Claim) -> list[Figure]:
    """All that a claim looks up."""
    sides = [side for check in claim.checks for side in (*check.higher, *check.lower)]
    return [side if isinstance(side, Figure) else side.of for side in sides if not isinstance(side, float)]
