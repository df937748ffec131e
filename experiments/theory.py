"""The error of personal models as their data grow, beside the rate of the paper's theorem 1: docs/theory.md.

python experiments/theory.py [--rounds 200] [--picture docs/images/theory.png]

The algorithm alone, without Flower: rounds of `client_update` and `mean` for every client in turn.
"""

import argparse
import math
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
CLIENTS, SEED, DRAWS, RHO = 6, 1, 20, -4.0
RATE = -2 / 3  # −2β/(2β + d) for β = d = 1
RECIPE = replace(Recipe.of(defaults()), zeta=1.0, lr_personal=0.003, lr_global=0.003, adam_beta2=0.99)
KINDS = {"together": "pFedBayes", "alone": "the same, every client alone"}
Errors = tuple[float, float]


def train(n: int, together: bool, rounds: int) -> list[torch.Tensor]:
    """Every client's q after all rounds; alone, each has a global distribution of its own."""
    family, network = Gaussian(), build("mlp", (1,), 0, SEED, NOISE)
    mu = flatten(network)
    w = [torch.stack([mu, torch.full_like(mu, RHO)])] * CLIENTS
    clients = [ClientState.start(one, network, RECIPE.optimizer) for one in w]
    data = []
    for client in range(CLIENTS):
        arrays = observe(client, (n, 1), SEED)
        x, y = (torch.from_numpy(arrays[name]).float() for name in ("x_train", "y_train"))
        data.append((x, y))
    for number in range(1, rounds + 1):
        for client, (x, y) in enumerate(data):
            generator = stream(SEED, str(client), number, "train")
            updated = client_update(
                network, family, clients[client], w[client], x, y, RECIPE, generator, gaussian
            )
            clients[client], w[client] = updated.personal, updated.w
        if together:
            w = [mean(w)] * CLIENTS
    return [client.q for client in clients]


def errors(models: list[torch.Tensor]) -> Errors:
    """The mean over clients, weights θ ~ q and x: of (f_θ − f_i)², and of the paper's Hellinger distance d²."""
    network, x = build("mlp", (1,), 0, SEED, NOISE), np.linspace(-1, 1, 2001)
    points = torch.from_numpy(x).float()[:, None]
    squared, hellinger = [], []
    for client, q in enumerate(models):
        found = forecast(network, Gaussian(), q, points, DRAWS, stream(SEED, str(client), "errors"))
        gaps = (found.means.numpy() - truth(x, client, SEED)) ** 2
        squared.append(gaps.mean())
        hellinger.append((1 - np.exp(-gaps / (8 * NOISE**2))).mean())
    return float(np.mean(squared)), float(np.mean(hellinger))


def slope(values: list[float]) -> float:
    """Of log value by log n, least squares."""
    return float(np.polyfit(np.log(SIZES), np.log(values), 1)[0])


def picture(found: dict[str, list[Errors]], file: Path) -> None:
    figure, axis = plt.subplots(figsize=(6, 3.8), constrained_layout=True)
    for (kind, title), colour in zip(KINDS.items(), ("C0", "C2"), strict=True):
        values = [squared for squared, _ in found[kind]]
        axis.loglog(SIZES, values, f"{colour}o-", label=f"{title}: slope {slope(values):.2f}")
    middle = math.exp(np.mean([math.log(squared) for squared, _ in found["together"]]))
    centre = math.exp(np.mean(np.log(SIZES)))
    line = [middle * (n / centre) ** RATE for n in SIZES]
    axis.loglog(SIZES, line, "k--", label=f"the paper's rate: {RATE:.2f}")
    axis.set(xlabel="n, training examples of a client", ylabel="mean squared distance to f_i")
    axis.grid(alpha=0.3, which="both")
    axis.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, default=Path("docs/images/theory.png"))
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| n | " + " | ".join(f"{title}: L² | d²" for title in KINDS.values()) + " |")
    print("|---|" + "---|---|" * len(KINDS))
    found: dict[str, list[Errors]] = {kind: [] for kind in KINDS}
    for n in SIZES:
        for kind in KINDS:
            found[kind].append(errors(train(n, kind == "together", arguments.rounds)))
        cells = [f"{value:.4f}" for kind in KINDS for value in found[kind][-1]]
        print(f"| {n} | {' | '.join(cells)} |", flush=True)
    slopes = [f"{slope([pair[k] for pair in found[kind]]):.2f}" for kind in KINDS for k in (0, 1)]
    print(f"| slope | {' | '.join(slopes)} |")
    picture(found, arguments.picture)


if __name__ == "__main__":
    main()
