"""The error of personal models as their data grow, with and without the others: docs/theory.md.

    python experiments/theory.py [--seeds 1,2,3,4,5] [--rounds 200] [--picture docs/images/theory.png]

The algorithm alone, without Flower: rounds of `client_update` and `mean` for every client in turn.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from bayes_core import ClientState, Gaussian, Recipe, client_update, mean
from bayes_core.flat import flatten
from bayes_core.likelihoods import gaussian
from bayes_core.predict.forecast import forecast
from client_app.data.functions import NOISE, observe, truth
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import defaults
from fedbayes.protocol.streams import stream

SIZES = (25, 50, 100, 200, 400, 800, 1600)
CLIENTS, DRAWS, RHO = 6, 20, -4.0
RECIPE = replace(Recipe.of(defaults()), zeta=1.0, lr_personal=0.003, lr_global=0.003, adam_beta2=0.99)
KINDS = {"together": "pFedBayes", "alone": "the same, every client alone"}
Errors = dict[str, list[list[float]]]  # of each kind: for each n, one for each seed


def train(n: int, together: bool, rounds: int, seed: int) -> list[torch.Tensor]:
    """Every client's q after all rounds; alone, each has a global distribution of its own."""
    family, network = Gaussian(), build("mlp", (1,), 0, seed, NOISE)
    mu = flatten(network)
    w = [torch.stack([mu, torch.full_like(mu, RHO)])] * CLIENTS
    clients = [ClientState.start(one, network, RECIPE.optimizer) for one in w]
    data = []
    for client in range(CLIENTS):
        arrays = observe(client, (n, 1), seed)
        x, y = (torch.from_numpy(arrays[name]).float() for name in ("x_train", "y_train"))
        data.append((x, y))
    for number in range(1, rounds + 1):
        for client, (x, y) in enumerate(data):
            generator = stream(seed, str(client), number, "train")
            updated = client_update(
                network, family, clients[client], w[client], x, y, RECIPE, generator, gaussian
            )
            clients[client], w[client] = updated.personal, updated.w
        if together:
            w = [mean(w)] * CLIENTS
    return [client.q for client in clients]


def error(models: list[torch.Tensor], seed: int) -> float:
    """The mean of (f_θ − f_i)² over clients, weights θ ~ q and x."""
    network, x = build("mlp", (1,), 0, seed, NOISE), np.linspace(-1, 1, 2001)
    points = torch.from_numpy(x).float()[:, None]
    squared = []
    for client, q in enumerate(models):
        found = forecast(network, Gaussian(), q, points, DRAWS, stream(seed, str(client), "errors"))
        squared.append(((found.means.numpy() - truth(x, client, seed)) ** 2).mean())
    return float(np.mean(squared))


def gains(found: Errors) -> list[list[float]]:
    """How many times larger the error alone is, for each n and seed."""
    pairs = zip(found["alone"], found["together"], strict=True)
    return [[alone / together for alone, together in zip(*pair, strict=True)] for pair in pairs]


def picture(found: Errors, file: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), constrained_layout=True)
    for (kind, title), colour in zip(KINDS.items(), ("C0", "C2"), strict=True):
        _band(left, found[kind], colour, title)
    left.set(xlabel="n, training examples of a client", ylabel="mean squared distance to f_i", yscale="log")
    left.legend()
    _band(right, gains(found), "C1", "")
    right.axhline(1, color="k", linestyle="--", linewidth=1)
    right.set(xlabel="n, training examples of a client", ylabel="error alone ÷ error together", yscale="log")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.grid(alpha=0.3, which="both")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def _band(axis: plt.Axes, values: list[list[float]], colour: str, title: str) -> None:
    """The geometric mean over seeds, and each seed as a faint line."""
    for seed in zip(*values, strict=True):
        axis.plot(SIZES, seed, color=colour, alpha=0.25, linewidth=1)
    axis.plot(SIZES, [statistics.geometric_mean(each) for each in values], "o-", color=colour, label=title)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, default=Path("docs/images/theory.png"))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", default="1,2,3,4,5")
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    torch.set_num_threads(1)
    print(f"| n | {' | '.join(KINDS.values())} | alone ÷ together, each seed |\n|---|---|---|---|")
    found: Errors = {kind: [] for kind in KINDS}
    for n in SIZES:
        for kind in KINDS:
            models = (train(n, kind == "together", arguments.rounds, seed) for seed in seeds)
            found[kind].append([error(one, seed) for one, seed in zip(models, seeds, strict=True)])
        cells = [f"{statistics.geometric_mean(found[kind][-1]):.4f}" for kind in KINDS]
        print(
            f"| {n} | {' | '.join(cells)} | {', '.join(f'{gain:.1f}' for gain in gains(found)[-1])} |",
            flush=True,
        )
    picture(found, arguments.picture)


if __name__ == "__main__":
    main()
