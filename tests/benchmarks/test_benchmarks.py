"""Every benchmark can be found, imported and shown. What they measure is asserted nowhere: machines differ."""

from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.__main__ import machine, names, table
from benchmarks.measure import PREFIX, Measurement
from benchmarks.watch import Look, Watched

ROOT = Path(__file__).parent.parent.parent


def test_the_frame_lists_every_file() -> None:
    files = {file.stem for file in (ROOT / "benchmarks").glob("bench_*.py")}
    assert {f"{PREFIX}{name}" for name in names()} == files
    assert {"step", "round", "clients", "server", "bytes"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_a_benchmark_has_a_title_and_runs(name: str) -> None:
    module = import_module(f"benchmarks.{PREFIX}{name}")
    assert module.TITLE
    assert callable(module.run)


def test_a_table_shows_values_and_ratios() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(
            table("Title", [Measurement("a", 1.5, "ms", {"× b": 2.0}, "why"), Measurement("b", 3.0, "ms")])
        )
    text = capture.get()
    assert all(word in text for word in ("Title", "1.5 ms", "2.00", "why", "3 ms"))
    assert machine()["cores"]


def test_what_a_watched_run_tells() -> None:
    """The rounds of the steady state, 4 and on, take 1, 3 and 2 s; the server uses half of each second."""
    looks = [Look(t, {"server": 0.5 * t}, {"server": 100.0 + t}) for t in range(30)]
    ends = {1: 2.0, 2: 8.0, 3: 10.0, 4: 11.0, 5: 14.0, 6: 16.0}
    run = Watched(ends, looks, evaluation=3.0, seconds=30.0)
    assert run.round_times() == [1.0, 3.0, 2.0]
    assert run.processor("server") == pytest.approx(0.5 * 6 / 3), "half of 6 s in three rounds"
    assert run.peak("server") == 129.0
    assert run.memory_at("server", 4, 5) == 114.0
