"""Many clients: the time of a round, and the memory of the server and of one worker, at the start and at the end.

`fedbayes run` on MNIST, every client with 25 training and 10 test images, S of them sampled in a round. At the end the
largest of these federations on Flower's own engine, for a few rounds.
"""

import statistics
from dataclasses import replace
from typing import Any

from benchmarks.measure import Measurement, Options
from benchmarks.watch import SERVER, WORKER, watch
from fedbayes.launch.engines import EMBEDDED, FLOWER

TITLE = "Many clients: layout=iid size=5+2, S clients a round"
TAKES_MNIST = True
ROUNDS_OF_FLOWER = 12


def run(options: Options) -> list[Measurement]:
    rows = []
    for clients in (100, 1000) if options.full else (100,):
        for sampled in (10, 100):
            rows += measured(options, clients, sampled, rounds_of(options, clients, sampled))
    embedded = rows[-3].value
    flower = measured(options, clients, sampled, ROUNDS_OF_FLOWER, FLOWER)
    return [
        *rows,
        *(replace(row, ratios={"÷ embedded": row.value / embedded}) for row in flower[:1]),
        *flower[1:],
    ]


def rounds_of(options: Options, clients: int, sampled: int) -> int:
    """Enough to see memory grow, and few where one takes seconds."""
    if options.full:
        return 40 if clients == 1000 and sampled == 100 else 200
    return 40 if sampled == 10 else 12


def measured(
    options: Options, clients: int, sampled: int, rounds: int, engine: str = EMBEDDED
) -> list[Measurement]:
    """The first quarter of the rounds against the last one."""
    words: dict[str, Any] = {"layout": "iid", "size": "5+2", "clients_per_round": sampled}
    watched = watch(options, clients, rounds, engine, **words)
    quarter = rounds // 4
    times = watched.round_times()
    first, last = statistics.median(times[:quarter]), statistics.median(times[-quarter:])
    title = f"{engine}, N = {clients}, S = {sampled}"
    rows = [
        Measurement(
            f"{title}: a round",
            1e3 * statistics.median(times),
            "ms",
            {"last ÷ first quarter": last / first},
            f"{rounds} rounds, {watched.seconds:.0f} s with the start, hello and three evaluations of all clients",
        )
    ]
    for name, kind in (("server", SERVER), ("a worker", WORKER)):
        early = watched.memory_at(kind, quarter // 2, quarter)
        late = watched.memory_at(kind, rounds - quarter // 2, rounds)
        rows.append(
            Measurement(
                f"{title}: peak memory, {name}",
                watched.peak(kind),
                "MB",
                {"last ÷ first quarter": late / early},
                f"{early:.0f} MB after {quarter} rounds, {late:.0f} after {rounds}",
            )
        )
    return rows
