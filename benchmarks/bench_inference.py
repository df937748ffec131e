"""Predictions per second with ten Monte-Carlo samples, beside a plain network and beside a loop over the samples.

From the distribution to its predictive: drawing the weights is part of it. One thread, Gaussian.
"""

import time
from collections.abc import Callable

import torch

from bayes_core import Gaussian, predictive
from bayes_core.flat import flatten
from bayes_core.predict.predictive import outputs
from benchmarks.measure import Measurement, Options, interleaved
from fedbayes.protocol.models import build

TITLE = "Inference with 10 samples, one thread"
SAMPLES = 10
CASES = [("dnn", (1, 28, 28), 100), ("dnn", (1, 28, 28), 1000), ("vgg", (3, 32, 32), 100)]  # and n examples


def run(options: Options) -> list[Measurement]:
    torch.set_num_threads(1)
    rows = []
    for model, shape, n in CASES:
        rows += compare(model, shape, n, repeats=60 if options.full else 10)
    return rows


def compare(model: str, shape: tuple[int, ...], n: int, repeats: int) -> list[Measurement]:
    family, network = Gaussian(), build(model, shape, 10).eval()
    v, x = family.init(flatten(network)), torch.randn(n, *shape)
    generator = torch.Generator().manual_seed(0)

    def loop() -> object:
        draws = (family.sample(v, generator).theta for _ in range(SAMPLES))
        return sum(outputs(network, theta, x, {}).softmax(-1) for theta in draws)

    calls: dict[str, Callable[[], object]] = {
        "plain network": torch.no_grad()(lambda: network(x).softmax(-1)),
        "10 samples, a loop": loop,
        "10 samples, ours": lambda: predictive(network, family, v, x, SAMPLES, generator),
    }
    times = interleaved(calls, repeats, clock=time.process_time)
    plain = times["plain network"].best
    return [
        Measurement(
            f"{model}, {n} examples: {name}",
            n / timing.best,
            "predictions/s",
            {"× the plain network's time": timing.best / plain},
        )
        for name, timing in times.items()
    ]
