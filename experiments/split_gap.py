"""How far apart the best cut of clients of one kind is, and that of several kinds: where `fedcfl.split-gap` comes from.

    python experiments/split_gap.py --seeds 1-3

FedCFL on the digits without ever splitting. For each case, over the seeds: the first round from `fedcfl.split-from` on
in which the ratio is low enough for a split, the gap there (the smallest of the seeds), the largest gap in any such
round, and in how many of the seeds the cut in that first round keeps every kind of client together.
"""

import argparse
from typing import Any

import torch
from torch import Tensor

from bayes_core.flat import flatten
from client_app.data import load
from client_app.methods.fedcfl import FedCFL as Client
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults
from strategies.fedcfl import Cut, FedCFL, best_cut

LAYOUTS: dict[str, dict[str, Any]] = {
    "one kind": {"layout": "iid"},
    "half of the labels each": {"layout": "labels"},
    "two kinds": {"layout": "rotated", "groups": 2},
    "four kinds": {"layout": "rotated", "groups": 4},
}
CLIENTS = {4: "medium", 5: "medium", 10: "medium", 20: "5+2"}
STEPS: dict[str, dict[str, Any]] = {
    "adam 0.001": {"optimizer": "adam", "lr-global": 0.001},
    "sgd 0.01": {"optimizer": "sgd", "lr-global": 0.01},
    "sgd 0.1": {"optimizer": "sgd", "lr-global": 0.1},
}


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


def describe(words: dict[str, Any], clients: int, seeds: list[int], rounds: int) -> str:
    """The cells of a row."""
    options, first, there, gaps, whole = FedCFL().options, [], [], [], 0
    for seed in seeds:
        settings = Settings.parse(defaults() | words | {"method": "fedcfl", "seed": seed, "rounds": rounds})
        found, kinds = cuts(settings, clients)
        low = [
            (number, cut)
            for number, cut in enumerate(found, 1)
            if number >= options.split_from and cut.ratio < options.split_ratio
        ]
        first.append(str(low[0][0]) if low else "–")
        gaps += [cut.gap for _, cut in low]
        if low:
            there.append(low[0][1].gap)
            whole += len(set(zip(kinds, low[0][1].labels, strict=True))) == len(set(kinds))
    if not gaps:
        return f"{', '.join(first)} | – | – | –"
    return f"{', '.join(first)} | {min(there):.2f} | {max(gaps):.2f} | {whole} of {len(seeds)}"


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
    print(
        "| clients | | steps | low from round | gap there | largest gap | kinds whole |\n|---|---|---|---|---|---|---|"
    )
    for title, layout in LAYOUTS.items():
        for clients, size in CLIENTS.items():
            for steps, words in STEPS.items():
                cells = describe(layout | words | {"size": size}, clients, seeds, arguments.rounds)
                print(f"| {title} | {clients} | {steps} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
