"""A client step: one step on q and one on w, beside the textbook, bayesian-torch and the limit.

Ours is `client_update`, whole rounds of R = 20 steps, divided by R: what a client really pays. One thread, b = 100,
1000 examples.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from bayes_core import Gaussian, Personal, Recipe, SpikeSlab, client_update
from bayes_core.flat import flatten
from bayes_core.networks import build
from benchmarks import limit, others, textbook
from benchmarks.measure import Measurement, Options, interleaved

TITLE = "A client step (q + w), one thread"
RECIPE = Recipe(local_steps=20, batch_size=100)
EXAMPLES = 1000
MODELS = {"dnn": (1, 28, 28), "vgg": (3, 32, 32)}


def run(options: Options) -> list[Measurement]:
    torch.set_num_threads(1)
    rows = []
    for model, shape in MODELS.items():
        for family in (Gaussian(), SpikeSlab()):
            rows += compare(model, shape, family, repeats=60 if options.full else 15)
    return rows


def compare(
    model: str, shape: tuple[int, ...], family: Gaussian | SpikeSlab, repeats: int
) -> list[Measurement]:
    network = build(model, shape, 10)
    assert isinstance(network, nn.Sequential)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, *shape, generator=generator)
    y = torch.randint(0, 10, (EXAMPLES,), generator=generator)
    gated = isinstance(family, SpikeSlab)
    title = f"{model}, {'spike-and-slab' if gated else 'Gaussian'}"

    rounds: dict[str, Callable[[], object]] = {
        "ours, eager": ours(network, family, x, y, compile=False),
        "ours, fused": ours(network, family, x, y, compile=True),
        "(a) textbook": textbook.client_round(network, gated, x, y, RECIPE),
    }
    if not gated:
        rounds["(b) bayesian-torch, q alone"] = others.bayesian_torch_round(network, x, y, RECIPE)
    parts = limit.kernels(network, x[: RECIPE.batch_size], gated)
    times = interleaved(rounds | parts, repeats, clock=time.process_time)
    step = {name: times[name].best / RECIPE.local_steps for name in rounds}
    floor = sum(times[name].best for name in parts)
    step["(c) limit"] = floor
    note = ", ".join(f"{name} {1e3 * times[name].best:.2f}" for name in parts)
    return [
        Measurement(
            f"{title}: {name}",
            1e3 * seconds,
            "ms",
            {"faster than (a)": step["(a) textbook"] / seconds, "× (c)": seconds / floor},
            note if name == "(c) limit" else "",
        )
        for name, seconds in step.items()
    ]


def ours(
    network: nn.Module, family: Gaussian | SpikeSlab, x: Tensor, y: Tensor, compile: bool
) -> Callable[[], object]:
    w = family.init(flatten(network))
    q = family.free(w)
    personal = Personal.start(q, network, "adam")
    gates = torch.Generator().manual_seed(1)
    return partial(
        client_update,
        network,
        family,
        personal,
        w,
        x,
        y,
        replace(RECIPE, compile=compile),
        torch.Generator(),
        gates=gates,
    )
