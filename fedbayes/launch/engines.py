"""What carries a run on this machine: the embedded engine, or Flower's own simulation."""

from collections.abc import Iterator
from typing import Protocol

from fedbayes.errors import CommandError
from fedbayes.launch.plan import Plan

EMBEDDED, FLOWER = "embedded", "flower"


class Engine(Protocol):
    """The processes of one run."""

    starting: str  # what is told until the run speaks for itself
    marker: str  # how they are found again, if need be

    def start(self) -> None:
        """Returns at once."""

    def lines(self) -> Iterator[str]:
        """What the run says, to its end; all of it is in log.txt too."""
        ...

    def says_failed(self) -> bool:
        """Whether the run failed, whatever it said."""
        ...

    def end(self) -> None:
        """Nothing of it is running afterwards."""


def check_engine(name: str) -> None:
    if name not in (EMBEDDED, FLOWER):
        raise CommandError(f'--engine takes {EMBEDDED} or {FLOWER}, not "{name}".')


def engine_for(plan: Plan, name: str) -> Engine:
    check_engine(name)
    if name == FLOWER:
        from fedbayes.launch.local import Federation

        return Federation(plan)
    from fedbayes.launch.engine.embedded import Embedded

    return Embedded(plan)
