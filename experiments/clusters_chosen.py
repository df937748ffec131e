"""How often `clusters=0` finds the right number of clusters, and the right ones: cases × seeds on real images.

    python experiments/clusters_chosen.py --seeds 300-319
    python experiments/clusters_chosen.py --data mnist --data-dir DIR --seeds 300-309

Every client trains once from the common start, as in round 0 of a run. The kinds of client are the symmetries of the
square, with and without the colours reversed. What was measured is kept in `--cache`, so that another rule can be
compared in seconds.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from bayes_core.flat import flatten, shapes_of
from bayes_core.server.clustering import choose_k_with_evidence
from bayes_core.server.moves import compare_learned, layers_of
from client_app.data.sources import read_pool
from client_app.methods.cfedbayes import CFedBayes
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults

UNEQUAL = (20, 30, 40, 60, 80, 100, 120, 150, 200, 250, 300, 400)
EXAMPLES = {"digits": 100, "mnist": 250, "fmnist": 250}  # of a client, unless a case says otherwise


@dataclass(frozen=True)
class Case:
    """Clients of each kind, and what else is special about them."""

    name: str
    sizes: tuple[int, ...]
    unequal: bool = False  # 20 … 400 examples each
    labels: int = 10  # of ten, drawn for each client
    noisy: int = 0  # the first so many have random labels; the right answer does not set them apart
    family: str = "gaussian"
    kinds: tuple[int, ...] = tuple(range(8))

    @property
    def groups(self) -> list[int]:
        return [number for number, size in enumerate(self.sizes) for _ in range(size)]


CASES = [
    *(Case(f"one kind, {n}", (n,)) for n in (4, 6, 10, 12, 20, 40, 100)),
    Case("one kind, 12, n 20…400", (12,), unequal=True),
    Case("one kind, 24, n 20…400", (24,), unequal=True),
    Case("3+3", (3, 3)),
    Case("5+5", (5, 5)),
    Case("10+10", (10, 10)),
    Case("3+3+3", (3, 3, 3)),
    Case("6+3+3", (6, 3, 3)),
    Case("4+4+4", (4, 4, 4)),
    Case("4+4+4, n 20…400", (4, 4, 4), unequal=True),
    Case("6+6, n 20…400", (6, 6), unequal=True),
    Case("4×5", (5,) * 4),
    Case("8×5", (5,) * 8),
    Case("nested, 4×4", (4,) * 4, kinds=(0, 1, 6, 7)),
    Case("1+9", (1, 9)),
    Case("1+19", (1, 19)),
    Case("2+8", (2, 8)),
    Case("5 labels, one kind, 10", (10,), labels=5),
    Case("2 labels, one kind, 10", (10,), labels=2),
    Case("5 labels, one kind, 20", (20,), labels=5),
    Case("5 labels, 5+5", (5, 5), labels=5),
    Case("1 noisy of 10", (10,), noisy=1),
    Case("2 noisy of 10", (10,), noisy=2),
    Case("3 noisy of 10", (10,), noisy=3),
    Case("5 noisy of 10", (10,), noisy=5),
    Case("6 noisy of 20", (20,), noisy=6),
    Case("3 noisy of 12, n 20…400", (12,), unequal=True, noisy=3),
    Case("spike-slab, one kind, 10", (10,), family="spike-slab"),
    Case("spike-slab, one kind, 20", (20,), family="spike-slab"),
    Case("spike-slab, 5+5", (5, 5), family="spike-slab"),
    Case("spike-slab, 4×5", (5,) * 4, family="spike-slab"),
    Case("spike-slab, 4+4+4, n 20…400", (4, 4, 4), unequal=True, family="spike-slab"),
    Case("spike-slab, 1+9", (1, 9), family="spike-slab"),
    Case("spike-slab, 3 noisy of 10", (10,), noisy=3, family="spike-slab"),
]


def as_kind(x: Tensor, kind: int) -> Tensor:
    """Images from −1 to 1, turned, mirrored or with their colours reversed."""
    turned = [x, x.rot90(2, (2, 3)), x.rot90(1, (2, 3)), x.rot90(3, (2, 3)), x.flip(3), x.flip(2)]
    return turned[kind] if kind < 6 else -turned[kind - 6]


def clients(case: Case, seed: int, data: str, data_dir: str) -> Iterator[tuple[Tensor, Tensor]]:
    pool = read_pool((data,), data_dir)
    y_all = torch.as_tensor(pool.labels[0])
    random = torch.Generator().manual_seed(seed)
    for number, group in enumerate(case.groups):
        size = UNEQUAL[(7 * number) % 12] if case.unequal else EXAMPLES[data]  # 7: both ends in each group
        own = torch.randperm(10, generator=random)[: case.labels]
        mine = torch.isin(y_all, own).nonzero()[:, 0]
        mine = mine[torch.randperm(len(mine), generator=random)[:size]]
        x, y = as_kind(pool.scaled(mine.numpy()), case.kinds[group]), y_all[mine]
        noise = torch.randint(10, y.shape, generator=random)
        yield x.contiguous(), noise if number < case.noisy else y


def measured(case: Case, seed: int, data: str, data_dir: str, kept: Path) -> tuple[Tensor, Tensor]:
    """Ψ of what the clients have learned, and of each and the common start."""
    file = kept / f"{data} {case.name} {seed}.npz"
    if not file.exists():
        words = {"method": "cfedbayes", "dataset": data, "seed": seed, "family": case.family}
        settings = Settings.parse(defaults() | words)
        cpu, uploads = torch.device("cpu"), []
        for number, (x, y) in enumerate(clients(case, seed, data, data_dir)):
            network = build("dnn", x.shape[1:], 10, seed)
            method = CFedBayes(settings, network, x, y, str(number), cpu)
            w = method.family.init(flatten(network), method.options.rho_init, method.options.lambda_init)
            uploads.append(method.train(method.start({"w": w}), {"w": w}, 0).uploads["w"])
        psi, start = compare_learned(uploads, w, method.family, layers_of(shapes_of(network).values()))
        kept.mkdir(parents=True, exist_ok=True)
        np.savez(file, psi=psi.numpy(), start=start.numpy())
    found = np.load(file)
    return torch.from_numpy(found["psi"]), torch.from_numpy(found["start"])


def line(case: Case, seeds: list[int], data: str, data_dir: str, kept: Path) -> str:
    found: Counter[int] = Counter()
    right, unsure, wrong_and_sure, scores = 0, 0, 0, []
    for seed in seeds:
        choice = choose_k_with_evidence(*measured(case, seed, data, data_dir, kept))
        score = adjusted_rand_score(case.groups, choice.kinds.labels)
        found[choice.k] += 1
        scores.append(score)
        right += score == 1
        unsure += not choice.kinds.sure
        wrong_and_sure += score < 1 and choice.kinds.sure
    chosen = ", ".join(f"{k}: {count}" for k, count in sorted(found.items()))
    return (
        f"| {data} | {case.name} | {len(case.sizes)} | {chosen} | {right} of {len(seeds)} | {np.mean(scores):.2f} "
        f"| {unsure} | {wrong_and_sure} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="digits", choices=EXAMPLES)
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--seeds", default="300-319", help="first-last; the rule was made on 0-29")
    parser.add_argument("--cases", default="", help="only cases whose name has this in it")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "kinds-of-clients")
    given = parser.parse_args()
    torch.set_num_threads(1)
    first, _, last = given.seeds.partition("-")
    seeds = list(range(int(first), int(last or first) + 1))
    print("| data | case | true K | K chosen: times | right | ARI | not sure | sure and wrong |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        if given.cases in case.name:
            print(line(case, seeds, given.data, given.data_dir, given.cache), flush=True)


if __name__ == "__main__":
    main()
