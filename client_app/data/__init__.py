"""One client's data: a source (which images there are) cut by a layout (who holds which).

Nothing here leaves the client; the coordinator never imports this package.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

from client_app.data import layouts
from client_app.data.errors import DataError
from client_app.data.layouts import NotEnough, Share
from client_app.data.pool import Pool
from client_app.data.sources import mixed_pair, read_pool, require_known
from fedbayes.settings import Settings

__all__ = ["ClientData", "DataError", "check", "load"]

# A simulation's actor meets all clients in turn. This holds ten clients of the paper's MNIST layouts; beyond
# it the oldest go and are cut again from the pool when they are needed, in some hundredths of a second.
CACHE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class ClientData:
    """What one client holds. Shared between calls of `load`: never change the tensors in place."""

    x_train: Tensor  # float32: images (n, channels, height, width), from uint8 in [−1, 1], or vectors (n, features)
    y_train: Tensor  # int64 classes or float32 targets (n,)
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]  # names of all classes of the data set, in the order of the labels
    group: int | None  # the true group of this client in the layouts rotated and mixed, else None


@dataclass(frozen=True)
class _Split:
    """The settings that a split depends on, and nothing else: the key of the caches."""

    dataset: str
    data_dir: str
    layout: str
    size: str
    groups: int
    dirichlet_alpha: float
    seed: int
    partitions: int


_clients: OrderedDict[tuple[_Split, int], ClientData] = OrderedDict()


def load(settings: Settings, partition: int, partitions: int) -> ClientData:
    """The share of client `partition` of `partitions`; the same bytes in every process."""
    split = _split_of(settings, partitions)
    key = (split, partition)
    if key not in _clients:
        pool, shares = _shares(split)
        if not 0 <= partition < partitions:
            raise DataError(f"There is no client {partition} among {partitions} (they count from 0).")
        _clients[key] = data = _cut(pool, shares[partition])
        # The clients of a run hold about the same, so one of them tells how many fit.
        while len(_clients) > max(1, CACHE_BYTES // (data.x_train.nbytes + data.x_test.nbytes)):
            _clients.popitem(last=False)
    _clients.move_to_end(key)
    return _clients[key]


def check(settings: Settings, partitions: int) -> None:
    """Raise the DataError that any of the clients would raise, before anything is started."""
    _shares(_split_of(settings, partitions))


def _split_of(settings: Settings, partitions: int) -> _Split:
    chosen = {field.name: getattr(settings, field.name) for field in fields(_Split)[:-1]}
    return _Split(**chosen, partitions=partitions)


@lru_cache(maxsize=4)
def _shares(split: _Split) -> tuple[Pool, list[Share]]:
    """Every client's share as indices, and the pool they point into."""
    datasets = mixed_pair(split.dataset) if split.layout == "mixed" else (split.dataset,)
    _require_possible(split, datasets)
    pool = read_pool(datasets, split.data_dir)
    _require_fitting(split, pool)
    y, classes, clients, seed = pool.labels[0], len(pool.classes), split.partitions, split.seed
    most = layouts.available(y, classes, split.layout, clients, split.groups)
    counts = layouts.counts_of(split.dataset, split.size, most)
    try:
        match split.layout:
            case "labels":
                shares = layouts.by_labels(y, classes, counts, clients, seed)
            case "iid":
                shares = layouts.iid(y, classes, counts, clients, seed)
            case "dirichlet":
                shares = layouts.dirichlet(y, classes, counts, clients, split.dirichlet_alpha, seed)
            case "rotated":
                shares = layouts.rotated(y, classes, counts, clients, split.groups, seed)
            case "mixed":
                shares = layouts.mixed((y, pool.labels[1]), classes, counts, clients, seed)
            case other:
                raise DataError(f'There is no layout "{other}"; docs/data.md lists them.')
    except NotEnough as error:
        what = "images" if pool.inputs.ndim == 4 else "examples"
        which = what if error.label is None else f'{what} of class "{pool.classes[error.label]}"'
        raise DataError(
            f"{datasets[error.source]} has {error.have} {which} but layout={split.layout} size={split.size} "
            f"with {clients} clients needs {error.need}; take fewer clients or a smaller size."
        ) from None
    return pool, shares


def _require_possible(split: _Split, datasets: Sequence[str]) -> None:
    """What is wrong whatever the files say; first, so that nobody waits for a download to hear it."""
    for dataset in datasets:
        require_known(dataset)
    if split.partitions < 1:
        raise DataError(f"A federation takes at least 1 client, not {split.partitions}.")
    if split.layout == "rotated" and split.groups not in (2, 4):
        raise DataError(
            f"layout=rotated takes 2 or 4 groups (turns of 180° or 90°), not groups={split.groups}."
        )
    groups = {"rotated": split.groups, "mixed": 2}.get(split.layout, 1)
    if groups > split.partitions:
        raise DataError(
            f"layout={split.layout} has {groups} groups and takes at least as many clients, "
            f"not {split.partitions}."
        )


def _require_fitting(split: _Split, pool: Pool) -> None:
    """What the layout needs of the data."""
    if not pool.classes and split.layout != "iid":
        raise DataError(
            f"layout={split.layout} deals by class, but {split.dataset} has numbers as targets; take layout=iid."
        )
    if split.layout == "rotated" and pool.inputs.ndim != 4:
        raise DataError(f"layout=rotated turns images, but {split.dataset} has vectors; take another layout.")
    height, width = pool.inputs.shape[-2:]
    if split.layout == "rotated" and split.groups == 4 and height != width:
        raise DataError(
            f"layout=rotated with groups=4 turns by 90° and takes square images, not {height}×{width}."
        )


def _cut(pool: Pool, share: Share) -> ClientData:
    x_train, x_test = pool.scaled(share.train), pool.scaled(share.test)
    if share.quarter_turns:
        x_train, x_test = (
            torch.rot90(x, share.quarter_turns, (2, 3)).contiguous() for x in (x_train, x_test)
        )
    y_train, y_test = pool.labels_of(share.train), pool.labels_of(share.test)
    return ClientData(x_train, y_train, x_test, y_test, pool.classes, share.group)
