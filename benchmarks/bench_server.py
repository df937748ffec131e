"""The server: adding up uploads as they arrive against a plain read of them, and the KL matrix against bare products.

Uploads are made on the fly, into one buffer, as messages would bring them; making them is not timed. A plain read is
`torch.sum` over the same bytes. All with as many threads as there are cores, as a server has them. A few uploads
before are not timed: a server has many rounds, and the first alone pays for memory that is used for the first time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch
from torch import Tensor

from bayes_core import Gaussian, symmetric_kl_matrix
from bayes_core.server.aggregate import Aggregate, Mean
from bayes_core.server.clustering import BLOCK
from bayes_core.server.moments import Moments
from benchmarks.measure import Measurement, Options

TITLE = "The server"
SMALL, LARGE = 80_000, 10_000_000
UPLOADS = {SMALL: (10, 100, 1000), LARGE: (10, 100, 1000)}
QUICK = {SMALL: (10, 100, 1000), LARGE: (10,)}
WARM_UP = 3  # uploads that are not timed
LOOP = 100  # clients of the double loop; more are extrapolated


def run(options: Options) -> list[Measurement]:
    rows = []
    for size, numbers in (UPLOADS if options.full else QUICK).items():
        for number in numbers:
            rows += [
                aggregation(name, by, size, number) for name, by in (("mean", Mean), ("moments", Moments))
            ]
    for number in (10, 100, 1000):
        rows += kl_matrix(number, repeats=3 if options.full else 1)
    return rows


def aggregation(name: str, by: type[Aggregate], size: int, number: int) -> Measurement:
    """Seconds for all uploads; relative to a plain read, and its memory in distributions of this size."""
    origin = distribution(size)
    upload = origin.clone()
    reading = adding = 0.0
    warm = by(origin)
    for _ in range(WARM_UP):
        upload.sum()
        warm.add(upload)
    warm.result()
    del warm  # its memory is not that of the next
    with peak_memory() as memory:
        aggregate = by(origin)
        for client in range(number):
            torch.add(origin, 1e-4 * client, out=upload)
            reading += _seconds(upload.sum)
            adding += _seconds(lambda: aggregate.add(upload))
        adding += _seconds(aggregate.result)
    title = f"{name} of {number} uploads, T = {size // 1000:,} k"
    ratios = {"× plain read": adding / reading}
    if size == LARGE:  # of less, the allocator's habits are the larger part
        ratios["memory ÷ upload"] = memory[0] / origin.nbytes
    speed = number * origin.nbytes / adding / 1e9
    return Measurement(title, 1e3 * adding, "ms", ratios, f"{speed:.1f} GB/s of uploads")


def kl_matrix(number: int, repeats: int) -> list[Measurement]:
    """Ψ of so many uploads, T = 80 k; beside it its matrix products alone, and a loop over all pairs."""
    family = Gaussian()
    stack = torch.stack([distribution(SMALL, client) for client in range(number)])
    pairs = [(i, j) for i in range(min(number, LOOP)) for j in range(i)][: 5000 if repeats > 1 else 200]

    def loop() -> None:
        for i, j in pairs:
            family.kl(stack[i], stack[j]).add(family.kl(stack[j], stack[i])).div(2)

    times = {"ours": [0.0], "bare": [0.0], "loop": [0.0]}
    calls: dict[str, Callable[[], object]] = {
        "ours": lambda: symmetric_kl_matrix(stack, family),
        "bare": bare_products(number, SMALL),
        "loop": loop,
    }
    for name, call in calls.items():
        times[name] = [
            _seconds(call)
        ]  # the first call, which is not counted unless nothing else can be afforded
    for _ in range(repeats if number > LOOP else 3 * repeats):
        for name in ("ours", "bare"):
            times[name].append(_seconds(calls[name]))
    ours, bare, some = (min(times[name]) for name in calls)
    looped = some / len(pairs) * number * (number - 1) / 2
    return [
        Measurement(
            f"KL matrix, N = {number}, T = 80 k",
            1e3 * ours,
            "ms",
            {"× bare products": ours / bare, "faster than the loop": looped / ours},
            f"bare products {1e3 * bare:.4g} ms, loop {looped:.3g} s ({len(pairs)} pairs timed)",
        )
    ]


def bare_products(number: int, size: int) -> Callable[[], object]:
    """Two products of (N, T) factors in float64, in blocks that stay in the processor's cache."""
    width = max(BLOCK // number, 256)
    of_i, of_j = torch.randn(2, number, 2 * width, dtype=torch.float64)
    total = torch.zeros(number, number, dtype=torch.float64)

    def products() -> None:
        for start in range(0, size, width):
            rest = 2 * min(width, size - start)
            total.addmm_(of_i[:, :rest], of_j[:, :rest].T)

    return products


def distribution(size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([0.1 * torch.randn(size, generator=generator), torch.full((size,), -2.5)])


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most bytes that the block held at once on top of what there was, looked at every other millisecond."""
    process, over = psutil.Process(), threading.Event()
    before, most = process.memory_info().rss, [0]

    def look() -> None:
        while not over.wait(0.002):
            most[0] = max(most[0], process.memory_info().rss - before)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield most
    finally:
        over.set()
        looking.join()


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
