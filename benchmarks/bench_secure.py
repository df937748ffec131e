"""Secure sums: what masks and a second exchange add to a round.

`fedbayes run` on MNIST medium with ten clients, with and without, in turn. The processor time of all workers and of the
server is what a round takes from a busy machine too; the shortest round is that of a quiet moment.
"""

import statistics

from benchmarks.measure import Measurement, Options
from benchmarks.watch import SERVER, WORKER, Watched, watch

TITLE = "Secure sums: size=medium, 10 clients"
TAKES_MNIST = True
ROUNDS = 60


def run(options: Options) -> list[Measurement]:
    found: dict[bool, list[Watched]] = {False: [], True: []}
    for _ in range(5 if options.full else 2):
        for secure, runs in found.items():
            runs.append(watch(options, 10, ROUNDS, size="medium", secure_sum=secure))
    rows = []
    for title, value in (
        ("processor time of a round", processor),
        ("shortest round", shortest),
        ("median round", median),
    ):
        plain, masked = (1e3 * value(found[which]) for which in (False, True))
        rows.append(Measurement(f"{title}, plain", plain, "ms"))
        rows.append(Measurement(f"{title}, secure-sum", masked, "ms", {"÷ plain": masked / plain}))
    return rows


def processor(runs: list[Watched]) -> float:
    """Of workers and server together, in the run that took least."""
    return min(one.processor(WORKER) + one.processor(SERVER) for one in runs)


def shortest(runs: list[Watched]) -> float:
    return min(min(one.round_times()) for one in runs)


def median(runs: list[Watched]) -> float:
    return statistics.median(time for one in runs for time in one.round_times())
