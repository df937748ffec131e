"""What carries a simulation: the embedded engine, Flower's own, or a Ray cluster."""

import threading
from collections.abc import Iterator
from typing import Protocol

from fedbayes.errors import CommandError
from fedbayes.launch.engine.children import FORKS
from fedbayes.launch.plan import Plan
from fedbayes.launch.resources import gpus
from fedbayes.protocol.settings import Settings

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
        raise CommandError(f'The engine is {EMBEDDED}, {FLOWER} or {RAY}, not "{name}".')
    if address is not None and name != RAY:
        raise CommandError(f"An address is that of a Ray cluster and goes with the engine {RAY}.")


def engine_for(plan: Plan, name: str, address: str | None = None) -> Engine:
    check_engine(name, address)
    if name != EMBEDDED and plan.settings.objects:
        raise CommandError("Data and networks that are Python objects take the embedded engine.")
    if name == FLOWER:
        from fedbayes.launch.local import Federation

        return Federation(plan)
    from fedbayes.launch.engine.embedded import Embedded

    if name == RAY:  # its threads and sockets need a process that never was another
        return Embedded(plan, copy=False, address=address or "auto")
    return Embedded(plan, copy=_may_be_copied(plan.settings))


def _may_be_copied(settings: Settings) -> bool:
    """Whether the run's processes may be copies of this one: they start at once, and have its objects.

    Elsewhere than on Linux that may crash, and CUDA does not work in a copy. Other threads are not copied, whatever
    they were about to do: where there are some, it is done only if it has to be, for the sake of objects.
    """
    reason = ""
    if not FORKS:
        reason = "this system does not copy processes safely"
    elif gpus(settings):
        reason = 'CUDA does not work in a copy of a process (device="cpu" would)'
    if reason and settings.objects:
        raise CommandError(
            f"{settings.objects[0]} is a Python object, which only a copy of this process has, and {reason}; "
            "write it as package.module:function."
        )
    return not reason and (bool(settings.objects) or threading.active_count() == 1)
