"""Differential privacy: what clips, noise and gradients of single examples add to a round.

`fedbayes run` on MNIST medium with ten clients and the steps of docs/privacy.md, without privacy and with each kind of
it, in turn; all ratios are of one run of this file. A round of whole batches has 4 private steps with all 1000
examples of a client, one of Poisson batches 4 with a hundred each, beside 20 steps of the personal model.
"""

from typing import Any

from benchmarks.bench_secure import median, processor, shortest
from benchmarks.measure import Measurement, Options
from benchmarks.watch import Watched, watch

TITLE = "Differential privacy: size=medium, 10 clients, local-steps=4 personal-steps=5"
TAKES_MNIST = True
ROUNDS = 20
STEPS: dict[str, Any] = {"size": "medium", "local_steps": 4, "personal_steps": 5}
KINDS: dict[str, dict[str, Any]] = {
    "no privacy": {},
    "dp-noise": {"dp_noise": 3.3},
    "dp-example-noise, whole batches": {"dp_example_noise": 10.74},
    "dp-example-noise, Poisson batches of 100": {
        "dp_example_noise": 10.74,
        "dp_example_batch": 100,
        "dp_example_sampling": "poisson",
    },
}


def run(options: Options) -> list[Measurement]:
    found: dict[str, list[Watched]] = {kind: [] for kind in KINDS}
    for _ in range(3 if options.full else 1):
        for kind, runs in found.items():
            runs.append(watch(options, 10, ROUNDS, **STEPS, **KINDS[kind]))
    rows = []
    for title, value in (
        ("processor time of a round", processor),
        ("shortest round", shortest),
        ("median round", median),
    ):
        times = {kind: 1e3 * value(runs) for kind, runs in found.items()}
        plain = times["no privacy"]
        for kind, time in times.items():
            rows.append(Measurement(f"{title}, {kind}", time, "ms", {"÷ no privacy": time / plain}))
    return rows
