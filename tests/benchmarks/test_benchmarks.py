"""Every benchmark can be found, imported and shown. Times are asserted nowhere: machines differ."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from rich.console import Console
from torch import nn

from benchmarks import __main__ as frame
from benchmarks import bench_bytes, bench_engine, bench_server, bench_step
from benchmarks.__main__ import machine, names, table
from benchmarks.bench_engine import Timed
from benchmarks.measure import PREFIX, Measurement, Options
from benchmarks.watch import Look, Watched
from client_app.data import DataError, sources
from fedbayes.protocol.settings import Settings, defaults

ROOT = Path(__file__).parent.parent.parent


def test_the_frame_lists_every_file() -> None:
    files = {file.stem for file in (ROOT / "benchmarks").glob("bench_*.py")}
    assert {f"{PREFIX}{name}" for name in names()} == files
    assert {"step", "round", "clients", "server", "bytes"} <= set(names())


def test_the_frame_can_call_each_and_tell_them_apart() -> None:
    modules = [import_module(f"benchmarks.{PREFIX}{name}") for name in names()]
    for module in modules:
        assert get_type_hints(module.run) == {"options": Options, "return": list[Measurement]}
    titles = [module.TITLE for module in modules]
    assert all(titles) and len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    ("method", "down", "up"),
    [("fedavg", 1, 1), ("local", 1, 0), ("pfedbayes", 2, 2), ("sfedbayes", 3, 3), ("cfedbayes", 2 * 2, 2)],
)
@pytest.mark.parametrize(("wire", "bytes_each"), [("float32", 4), ("bfloat16", 2)])
def test_the_bytes_of_a_round_are_rows_times_weights(
    method: str, down: int, up: int, wire: str, bytes_each: int
) -> None:
    """Each row has numpy's header of 128 bytes; cFedBayes' clients receive both priors."""
    words = {"method": method, "wire": wire, "local-steps": 1, "batch-size": 4, "optimizer": "sgd"}
    network, x, y = nn.Linear(8, 3), torch.zeros(4, 8), torch.tensor([0, 1, 2, 0])
    row = 128 + bytes_each * (8 * 3 + 3)
    found = bench_bytes.one_round(Settings.parse(defaults() | words), network, x, y)
    assert found == (down * row, up * row)


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


def test_without_data_the_others_run_and_a_sentence_says_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Now:
        """A process pool that is this process."""

        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> "Now":
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, call: Callable[..., object], *arguments: object) -> Future[object]:
            done: Future[object] = Future()
            try:
                done.set_result(call(*arguments))
            except Exception as error:
                done.set_exception(error)
            return done

    def nothing(*_: object) -> None:
        raise DataError("no data and no network")

    monkeypatch.setattr(frame, "ProcessPoolExecutor", Now)
    monkeypatch.setattr(sources, "read_pool", nothing)
    monkeypatch.setattr(bench_server, "run", lambda options: [Measurement("a", 1.0, "ms")])
    monkeypatch.setattr(bench_engine, "command", lambda engine, address: Timed(1.0, 2.0, 3.0))
    monkeypatch.setattr(bench_engine, "address_for", lambda engine: nullcontext())
    monkeypatch.setattr(bench_step, "run", lambda options: [Measurement("a step", 1.0, "ms")])
    monkeypatch.setattr(bench_step, "find_spec", lambda name: None)
    words = ["--only", "server,engine,round,bytes,step", "--out-dir", str(tmp_path), "--data-dir", "nowhere"]
    monkeypatch.setattr("sys.argv", ["benchmarks", *words])
    assert frame.main() == 0
    said = capsys.readouterr().out
    assert "The server" in said and "embedded: to the first row" in said
    left_out = (
        "Left out: the rounds of clients that compute nothing of engine, round, bytes, for want of MNIST"
    )
    assert left_out in said
    assert "Left out: bayesian-torch's rows of step, for want of that package." in said
