"""What carries a simulation: the embedded engine, Flower's own, or a Ray cluster."""

from collections.abc import Iterator
from typing import Protocol

from fedbayes.errors import CommandError
from fedbayes.launch.plan import Plan

EMBEDDED, FLOWER, RAY = "embedded", "flower", "ray"


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


def check_engine(name: str, address: str | None = None) -> None:
    if name not in (EMBEDDED, FLOWER, RAY):
        raise CommandError(f'--engine takes {EMBEDDED}, {FLOWER} or {RAY}, not "{name}".')
    if address is not None and name != RAY:
        raise CommandError("--address is that of a Ray cluster and goes with --engine ray.")


def engine_for(plan: Plan, name: str, address: str | None = None) -> Engine:
    check_engine(name, address)
    if name == FLOWER:
        from fedbayes.launch.local import Federation

        return Federation(plan)
    from fedbayes.launch.engine.embedded import Embedded

    # Ray's threads and sockets need a process that never was another
    return Embedded(plan, copy=False, address=address or "auto") if name == RAY else Embedded(plan)
