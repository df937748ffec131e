"""How far apart the best cut of clients of one kind is, and that of several kinds: where `fedcfl.split-gap` comes from.

    python experiments/split_gap.py --seeds 1-3

FedCFL on the digits without ever splitting, with Adam at 0.001 and with SGD at 0.01 and at 0.1. For each case, over
these and the seeds: the first round from `fedcfl.split-from` on in which the ratio is low enough for a split; the least
and the largest gap in the rounds in which a split is then possible, and the largest in any later one; and how often the
first of these cuts keeps every kind of client together.
"""

import argparse
import itertools
from typing import Any

import torch
from torch import Tensor

from bayes_core.flat import flatten
from client_app.data import load
from client_app.methods.fedcfl import FedCFL as Client
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from strategies.fedcfl import WINDOW, Cut, FedCFL, best_cut

LAYOUTS: dict[str, dict[str, Any]] = {
    "one kind": {"layout": "iid"},
    "half of the labels each": {"layout": "labels"},
    "two kinds": {"layout": "rotated", "groups": 2},
    "four kinds": {"layout": "rotated", "groups": 4},
}
CLIENTS = {5: "medium", 10: "medium", 20: "5+2"}  # and how much each of them has
STEPS: tuple[dict[str, Any], ...] = (
    {"optimizer": "adam", "lr-global": 0.001},
    {"optimizer": "sgd", "lr-global": 0.01},
    {"optimizer": "sgd", "lr-global": 0.1},
)


def cuts(settings: Settings, clients: int) -> tuple[list[Cut], list[int]]:
    """The best cut of all clients in every round, and each client's kind."""
    data = [load(settings, number, clients) for number in range(clients)]
    network = build(settings.model, data[0].x_train.shape[1:], len(data[0].classes), settings.seed)
    members = [
        Client(settings, network, one.x_train, one.y_train, str(number), torch.device("cpu"))
        for number, one in enumerate(data)
    ]
    w: Tensor = flatten(network)[None].clone()
    found = []
    for number in range(1, settings.rounds + 1):
        uploads = torch.stack([one.train({}, {"w": w}, number).uploads["w"][0] for one in members])
        found.append(best_cut(uploads, w[0]))
        w = uploads.double().mean(0).float()[None]
    return found, [one.group or 0 for one in data]


def describe(layout: dict[str, Any], clients: int, seeds: list[int], rounds: int) -> str:
    """The cells of a row, over all seeds and ways of stepping."""
    options, whole, cases = FedCFL().options, 0, 0
    first: list[int] = []
    judged: list[float] = []
    later: list[float] = []
    for seed, steps in itertools.product(seeds, STEPS):
        words = (
            layout | steps | {"method": "fedcfl", "seed": seed, "rounds": rounds, "size": CLIENTS[clients]}
        )
        found, kinds = cuts(Settings.parse(defaults() | words), clients)
        low = [
            (number, cut)
            for number, cut in enumerate(found, 1)
            if number >= options.split_from and cut.ratio < options.split_ratio
        ]
        cases += 1
        first += [number for number, _ in low[:1]]
        judged += [cut.gap for _, cut in low[:WINDOW]]
        later += [cut.gap for _, cut in low[WINDOW:]]
        whole += bool(low) and len(set(zip(kinds, low[0][1].labels, strict=True))) == len(set(kinds))
    if not judged:
        return "– | – | – | –"
    together = f"{whole} of {cases}" if len(set(kinds)) > 1 else "–"
    gaps = f"{min(judged):.2f} … {max(judged):.2f}"
    return f"{min(first)} … {max(first)} | {gaps} | {max(later, default=0.0):.2f} | {together}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1-3")
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    begin, _, end = arguments.seeds.partition("-")
    seeds = list(range(int(begin), int(end or begin) + 1))
    torch.set_num_threads(1)
    titles = ("", "clients", "ratio low from round", "gap then", "largest later", "kinds whole")
    print(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for (title, layout), clients in itertools.product(LAYOUTS.items(), CLIENTS):
        cells = describe(layout, clients, seeds, arguments.rounds)
        print(f"| {title} | {clients} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
