"""Counts, on the strict device, how often it and its host wait for each other in rounds of R = 2 and of 12 steps.

python device_crossings.py      # prints {"case": [the operations of 2 steps, those of 12], "step": {…}} as JSON

"step" is how many kernels a GPU is asked for in a step on q and one on w of the DNN: all of them, those of the five
formulas that fast/traced.py compiles, and how often these are called.
"""

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

import strict_device
import torch
from device_networks import Waiting, normed
from strict_device import DEVICE, Generator, crossings, launches
from torch import nn

from bayes_core import ClientState, Gaussian, Recipe, SpikeSlab, client_update
from bayes_core.families import Family
from bayes_core.fast.traced import FORMULAS
from bayes_core.flat import flatten
from bayes_core.inference import update
from bayes_core.inference.plain import Proximal, Weights, train_weights
from bayes_core.inference.private import Mechanism
from bayes_core.networks import in_bfloat16
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import defaults

N, SHAPE = 40, (1, 8, 8)
CHAIN: Callable[[], nn.Module] = lambda: build("dnn", SHAPE, 10, 1)  # noqa: E731
HALF: Callable[[], nn.Module] = lambda: in_bfloat16(CHAIN())  # noqa: E731
NORMED: Callable[[], nn.Module] = lambda: normed(SHAPE, 10)  # noqa: E731
CONVOLVED: Callable[[], nn.Module] = lambda: nn.Sequential(  # noqa: E731
    nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
)


def bayesian(
    make: Callable[[], nn.Module],
    family: Family,
    optimizer: str,
    steps: int,
    private: Mechanism | None = None,
) -> None:
    network = make().to(DEVICE)
    w = family.init(flatten(network).detach())
    changes = {"local-steps": steps, "batch-size": 16, "compile": False, "optimizer": optimizer}
    start = ClientState.start(family.unconstrain(w), network, optimizer)
    crossings.clear()
    client_update(
        network, family, start, w, *DATA, Recipe.of(defaults() | changes), Generator().manual_seed(1), private=private
    )  # fmt: skip


def plain(
    make: Callable[[], nn.Module], optimizer: str, steps: int, private: Mechanism | None = None
) -> None:
    network = make().to(DEVICE)
    w = flatten(network).detach()[None]
    start = Weights.start(w, network, optimizer)
    crossings.clear()
    train_weights(
        network, start, *DATA, steps=steps, batch_size=16, optimizer=optimizer, lr=0.01, adam_beta2=0.99,
        generator=Generator().manual_seed(1), terms=[Proximal(w[0], 0.1)], private=private,
    )  # fmt: skip


CASES: dict[str, Callable[[int], None]] = {
    f"{name}, {optimizer}": case
    for optimizer in ("adam", "sgd")
    for name, case in {
        "gaussian": lambda steps, by=optimizer: bayesian(CHAIN, Gaussian(), by, steps),
        "spike and slab": lambda steps, by=optimizer: bayesian(CHAIN, SpikeSlab(), by, steps),
        "gaussian, batch norm": lambda steps, by=optimizer: bayesian(NORMED, Gaussian(), by, steps),
        "gaussian, bfloat16": lambda steps, by=optimizer: bayesian(HALF, Gaussian(), by, steps),
        "plain": lambda steps, by=optimizer: plain(CHAIN, by, steps),
        "plain, batch norm": lambda steps, by=optimizer: plain(NORMED, by, steps),
        "plain, bfloat16": lambda steps, by=optimizer: plain(HALF, by, steps),
    }.items()
} | {
    "waiting": lambda steps: bayesian(lambda: Waiting(SHAPE, 10), Gaussian(), "adam", steps),
    "private": lambda steps: bayesian(CHAIN, Gaussian(), "sgd", steps, Mechanism(1.0, 1.0)),
    "private, convolutions": lambda steps: bayesian(CONVOLVED, Gaussian(), "sgd", steps, Mechanism(1.0, 1.0)),
    "private, plain": lambda steps: plain(CHAIN, "sgd", steps, Mechanism(1.0, 1.0)),
}


def counted(formula: Callable[..., Any], met: list[int]) -> Callable[..., Any]:
    """The same formula; how many kernels each call takes is noted."""

    @wraps(formula)
    def wrapped(*arguments: Any) -> Any:
        before = len(launches)
        result = formula(*arguments)
        met.append(len(launches) - before)
        return result

    return wrapped


def in_a_step(case: Callable[[int], None]) -> dict[str, float]:
    """Kernels in a step: what ten more steps take besides."""
    of_formulas: list[int] = []
    as_ever = {name: getattr(update.Formulas, name) for name in FORMULAS}
    for name, formula in as_ever.items():
        setattr(update.Formulas, name, counted(formula, of_formulas))
    met = []
    for steps in (2, 12):
        of_formulas.clear()
        launches.clear()
        case(steps)
        met.append((len(launches), sum(of_formulas), len(of_formulas)))
    for name, formula in as_ever.items():
        setattr(update.Formulas, name, formula)
    few, many = met
    names = ("kernels", "of formulas", "calls of formulas")
    return {name: (more - less) / 10 for name, less, more in zip(names, few, many, strict=True)}


found: dict[str, Any] = {}
with strict_device.StrictMode():
    DATA = torch.randn(N, *SHAPE).to(DEVICE), (torch.arange(N) % 10).to(DEVICE)
    for name, case in CASES.items():
        found[name] = []
        for steps in (2, 12):
            case(steps)
            found[name].append(list(crossings))
    kinds = ("gaussian, adam", "spike and slab, adam", "gaussian, bfloat16, adam", "plain, adam")
    found["step"] = {name: in_a_step(CASES[name]) for name in kinds}
print(json.dumps(found))
