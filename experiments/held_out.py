"""Recipes, judged on images that no client holds: a cell of the paper's tables with other settings, without its tests.

    python experiments/held_out.py mnist/large --data-dir DIR [--rounds 200] [--seed 1] [--images 200] [key=value …]

The clients train on what `fedbayes run` with the same seed would give them; in place of each one's test images come up
to 200 (`--images`) of each of its classes from the images of the data set that no client has, neither for training nor
for the test. So settings can be chosen with all training data and without a look at any test. Prints a row for each
measured round, and keeps it all in runs/held-out. Cells: mnist, fmnist, cifar10, mnist-rotated, fmnist-rotated,
mnist-fmnist; small, medium, large. CIFAR-10 is DIR/cifar10.npz (x, y). `--clients 4` takes the first four of all of
them, for a quick look.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedbayes
from client_app.data import _shares
from client_app.data.layouts import Share
from client_app.data.pool import Pool
from client_app.data.split import Split
from fedbayes.protocol.settings import Settings, defaults
from fedbayes.reproduce.cells import DATA, Cell

SHOWN = ("pm_accuracy", "gm_accuracy", "pm_nll", "gm_nll", "pm_ece", "pm_nonzero")


def shares_of(cell: Cell, data_dir: str, seed: int) -> tuple[Pool, list[Share]]:
    words = {
        **defaults(),
        **cell.words(),
        **cell.found_in(Path(data_dir)),
        "data-dir": data_dir,
        "seed": seed,
    }
    return _shares(Split.of(Settings.parse(words)), cell.clients)


def held_out(pool: Pool, shares: list[Share], seed: int, most: int) -> Iterator[tuple[Any, ...]]:
    """Each client's training data as they are, and images of nobody's for its test."""
    labels = np.concatenate(pool.labels)
    taken = np.zeros(len(labels), bool)
    for share in shares:
        taken[share.train] = taken[share.test] = True
    sizes = np.cumsum([0, *map(len, pool.labels)])
    source = np.searchsorted(sizes, np.arange(len(labels)), side="right") - 1
    dice = np.random.default_rng(seed)
    for share in shares:
        picked = []
        for origin in np.unique(source[share.train]):
            mine = share.train[source[share.train] == origin]
            # of two data sets as many as it has for training
            share_of_it = round(most * len(mine) / len(share.train))
            for label in np.unique(labels[mine]):
                free = np.flatnonzero(~taken & (labels == label) & (source == origin))
                picked.append(dice.permutation(free)[:share_of_it])
        found = []
        for indices in (share.train, np.concatenate(picked)):
            images = torch.rot90(pool.inputs[torch.from_numpy(indices)], share.quarter_turns, (2, 3))
            found += [images.numpy(), labels[indices]]
        yield tuple(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cell", help="mnist/large")
    parser.add_argument("settings", nargs="*", help="key=value")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--method", default="pfedbayes")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--images", type=int, default=200, help="of each class, for each client")
    parser.add_argument("--clients", type=int, help="only the first so many")
    parser.add_argument("--bare", action="store_true", help="without the recipe of fedbayes reproduce")
    parser.add_argument("--name", default="")
    options = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    data, size = options.cell.split("/")
    cell = Cell("table1", data, size, options.method)
    pool, shares = shares_of(cell, options.data_dir, options.seed)
    clients = list(held_out(pool, shares, options.seed, options.images))[: options.clients]
    usual = {} if options.bare else cell.words()
    given = dict(word.split("=", 1) for word in options.settings)
    words = {**usual, "method": options.method, "model": DATA[data].model, **given}
    for key in ("dataset", "layout", "groups", "size"):
        words.pop(key, None)
    words |= {"rounds": options.rounds, "eval-every": options.every, "seed": options.seed}
    name = options.name or "-".join([data, size, options.method, *(f"{k}_{v}" for k, v in given.items())])
    result = fedbayes.run(
        dataset=clients, run_name=name.replace("/", "."), out_dir="runs/held-out", progress=False,
        **{key.replace("-", "_"): value for key, value in words.items()},
    )  # fmt: skip
    rows = result.rounds
    rows = rows[rows["pm_accuracy"].notna()] if "pm_accuracy" in rows else rows
    shown = [column for column in ("round", *SHOWN) if column in rows and rows[column].notna().any()]
    print(
        options.cell,
        options.method,
        given,
        f"seconds={rows['seconds'].sum() if 'seconds' in rows else 0:.0f}",
    )
    print(rows[shown].to_string(index=False, float_format=lambda value: f"{value:.4f}"), flush=True)


if __name__ == "__main__":
    main()
