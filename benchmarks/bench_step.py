"""A client step: one step on q and one on w, beside the textbook, bayesian-torch and the limit.

Ours is `client_update`, whole rounds of R = 20 steps (with the VGG 5), divided by
R: what a client really pays. One thread, b = 100, 1000 examples. The fused step's one-off cost stands below: its
compilation, once for a machine and user, and what every later process pays to find it.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from bayes_core import ClientState, Family, Gaussian, Recipe, SpikeSlab, client_update
from bayes_core.fast import compiled
from bayes_core.flat import flatten
from benchmarks import limit, others, textbook
from benchmarks.measure import Measurement, Options, interleaved, seconds
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import defaults

TITLE = "A client step (q + w), one thread"
EXAMPLES = 1000


@dataclass(frozen=True)
class Case:
    model: str
    shape: tuple[int, ...]
    recipe: Recipe
    repeats: int
    repeats_full: int


RECIPE = replace(Recipe.of(defaults()), batch_size=100)
CASES = [
    Case("dnn", (1, 28, 28), replace(RECIPE, local_steps=20), 60, 100),
    Case("vgg", (3, 32, 32), replace(RECIPE, local_steps=5), 5, 40),
]


def run(options: Options) -> list[Measurement]:
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        for family in (Gaussian(), SpikeSlab()):
            rows += compare(case, family, case.repeats_full if options.full else case.repeats)
    return rows + one_off()


def lacking() -> tuple[str, str]:
    """What is left out, and for want of what: an extra of its own, which takes a network to install."""
    return ("", "") if find_spec("bayesian_torch") else ("bayesian-torch's rows", "that package")


def compare(case: Case, family: Family, repeats: int) -> list[Measurement]:
    recipe, shape = case.recipe, case.shape
    network = build(case.model, shape, 10)
    assert isinstance(network, nn.Sequential)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, *shape, generator=generator)
    y = torch.randint(0, 10, (EXAMPLES,), generator=generator)
    gated = family.gated
    title = f"{case.model}, {'spike-and-slab' if gated else 'Gaussian'}"

    rounds: dict[str, Callable[[], object]] = {
        "ours, eager": ours(network, family, x, y, replace(recipe, compile=False)),
        "ours, fused": ours(network, family, x, y, replace(recipe, compile=True)),
        "(a) textbook": textbook.client_round(network, gated, x, y, recipe),
    }
    if not gated and not lacking()[0]:
        rounds["(b) bayesian-torch, q alone"] = others.bayesian_torch_round(network, x, y, recipe)
    parts = limit.kernels(network, x[: recipe.batch_size], gated)
    times = interleaved(rounds | parts, repeats, clock=time.process_time)
    step = {name: times[name].best / recipe.local_steps for name in rounds}
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


def ours(network: nn.Module, family: Family, x: Tensor, y: Tensor, recipe: Recipe) -> Callable[[], object]:
    w = family.init(flatten(network))
    q = family.unconstrain(w)
    personal = ClientState.start(q, network, "adam")
    gates = torch.Generator().manual_seed(1)
    return partial(
        client_update,
        network,
        family,
        personal,
        w,
        x,
        y,
        recipe,
        torch.Generator(),
        gates=gates,
    )


def one_off() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        compiling = seconds(partial(compiled.build, Path(folder) / "kernels.so"))
    code = (
        "from time import time; from bayes_core.fast.compiled import library; "
        "a = time(); library(); print(time() - a)"
    )
    finding = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    return [
        Measurement("fused step: compilation, once a machine", compiling, "s"),
        Measurement("fused step: found by a later process", 1e3 * min(finding), "ms"),
    ]
