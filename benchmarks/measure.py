"""What a benchmark returns, and how things that are compared are timed."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

PREFIX = "bench_"  # of a benchmark's module


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    full: bool = False
    data_dir: Path = Path("data")


class LeftOut(Exception):
    """What a benchmark takes that is not here, in words."""


@dataclass(frozen=True)
class Measurement:
    """One row of a table: a value, and what it is relative to the things beside it."""

    name: str
    value: float
    unit: str
    ratios: Mapping[str, float] = field(default_factory=dict)  # column title → ratio
    note: str = ""


@dataclass(frozen=True)
class Performed:
    """A benchmark that has run; where it could not run whole, what is left out and what that takes."""

    title: str
    rows: Sequence[Measurement]
    seconds: float
    left_out: str = ""
    lacks: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the fastest of all repetitions, and their median."""

    best: float
    median: float


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    repeats: int = 30,
    at_least: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Seconds a call of each, measured in turn: A B C A B C …

    One repetition calls often enough to last `at_least` seconds, so that the clock matters little. Everything is
    called once before: first calls allocate, compile and fill caches. Where all work is done by one thread,
    `clock=time.process_time` is the wall time of a quiet machine, on a busy one too.
    """
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(1, round(at_least / max(seconds(call, 1, clock), 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            samples[name].append(seconds(call, counts[name], clock))
    return {name: Timing(min(times), statistics.median(times)) for name, times in samples.items()}


def seconds(
    call: Callable[[], object], times: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The time of one call, averaged over `times` calls."""
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times


def perform(name: str, options: Options) -> Performed:
    """One benchmark, in a process of its own. One that takes MNIST may do a part of its work without it."""
    start = time.perf_counter()
    module = import_module(f"benchmarks.{PREFIX}{name}")
    work, left_out, lacks = module.run, "", ""
    if getattr(module, "TAKES_MNIST", False):
        try:
            require_mnist(options.data_dir)
        except LeftOut as missing:
            if not hasattr(module, "run_without_mnist"):
                raise
            work, left_out, lacks = module.run_without_mnist, module.ONLY_WITH_MNIST, str(missing)
    elif hasattr(module, "lacking"):
        left_out, lacks = module.lacking()
    rows = work(options)
    return Performed(module.TITLE, rows, time.perf_counter() - start, left_out, lacks)


def require_mnist(folder: Path) -> None:
    from client_app.data import DataError
    from client_app.data.sources import read_pool

    try:
        read_pool(("mnist",), str(folder))
    except DataError:
        raise LeftOut(
            f"MNIST, which is neither in {folder} nor to be had from here (--data-dir DIR)"
        ) from None
