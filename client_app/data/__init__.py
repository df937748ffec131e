"""One client's data: a source (which examples there are) cut by a layout (who holds which), or a site's own.

Nothing here leaves the client; the coordinator never imports this package.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from client_app.data import functions, layouts
from client_app.data.client_data import ClientData
from client_app.data.errors import DataError
from client_app.data.layouts import NotEnough, Share
from client_app.data.pool import Pool
from client_app.data.site_data import load_site, sites_in
from client_app.data.sources import NAMES, mixed_pair, read_pool, require_known
from client_app.data.split import Split
from client_app.data.tables.rows import told_at_once
from fedbayes.protocol.agreement import Agreement, Disagreement
from fedbayes.protocol.objects import is_pool
from fedbayes.protocol.settings import FUNCTION, Settings

__all__ = [
    "NAMES",
    "ClientData",
    "DataError",
    "Split",
    "check",
    "forget",
    "load",
    "load_site",
    "simulated_sites",
]

# A simulation's actor meets all clients in turn. This holds ten clients of the paper's MNIST layouts; beyond
# it the oldest go and are cut again from the pool when they are needed, in some hundredths of a second.
CACHE_BYTES = 256 * 2**20
CACHE_CLIENTS = 32  # of a federation of hundreds hardly one comes back before the others have been there

_clients: OrderedDict[tuple[Split, int, int], ClientData] = OrderedDict()


def load(settings: Settings, partition: int, partitions: int) -> ClientData:
    """What client `partition` of `partitions` holds; the same bytes in every process."""
    split = Split.of(settings)
    key = (split, partitions, partition)
    if key not in _clients:
        _clients[key] = data = _read(split, partition, partitions)
        # The clients of a run hold about the same, so one of them tells how many fit.
        fit = CACHE_BYTES // (data.x_train.nbytes + data.x_test.nbytes)
        while len(_clients) > max(1, min(CACHE_CLIENTS, fit)):
            _clients.popitem(last=False)
    _clients.move_to_end(key)
    return _clients[key]


def _read(split: Split, partition: int, partitions: int) -> ClientData:
    sites = _sites(split, partitions)
    pool, shares = (None, []) if sites else _shares(split, partitions)
    if not 0 <= partition < partitions:
        raise DataError(f"There is no client {partition} among {partitions} (they count from 0).")
    if pool is None:
        name, source = sites[partition]
        return load_site(source, split, name, partition, partitions)
    return _cut(pool, shares[partition])


def forget() -> None:
    """What this process keeps of files and functions, which may have changed."""
    _clients.clear()
    _shares.cache_clear()
    read_pool.cache_clear()


def check(settings: Settings, partitions: int) -> ClientData:
    """One client's data after all have agreed, or a DataError with what any of them would raise, all of it."""
    split = Split.of(settings)
    sites = _sites(split, partitions)
    if not sites:
        _shares(split, partitions)
    names = [name for name, _ in sites] or ["0"]
    clients, problems = {}, []
    for number, name in enumerate(names):
        try:
            clients[name] = load(settings, number, partitions)
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError(told_at_once(list(dict.fromkeys(problems))))
    try:
        agreement = Agreement.of({name: data.claim(settings.scale) for name, data in clients.items()})
    except Disagreement as error:
        raise DataError(str(error)) from None
    return clients[names[0]].agreed(agreement, settings.scale)


def simulated_sites(dataset: str) -> list[str]:
    """The names of the sites where `dataset` is a folder of them; none for any other."""
    return list(sites_in(Path(dataset))) if Path(dataset).is_dir() else []


def _sites(split: Split, partitions: int) -> list[tuple[str, str]]:
    """Name and source of every site where each has its own; none where they share a pool."""
    if is_pool(split.dataset):
        return []
    if FUNCTION.fullmatch(split.dataset) or split.dataset == functions.NAME:
        return [(str(number), split.dataset) for number in range(partitions)]
    if not Path(split.dataset).is_dir():
        return []
    found = sites_in(Path(split.dataset))
    if len(found) != partitions:
        raise DataError(
            f"{split.dataset} holds {len(found)} sites ({', '.join(found)}), not {partitions}; "
            f"give --clients {len(found)}."
        )
    return [(name, str(path)) for name, path in found.items()]


@lru_cache(maxsize=4)
def _shares(split: Split, clients: int) -> tuple[Pool, list[Share]]:
    """Every client's share as indices, and the pool they point into."""
    datasets = mixed_pair(split.dataset) if split.layout == "mixed" else (split.dataset,)
    _require_possible(split, clients, datasets)
    pool = read_pool(datasets, split.data_dir, split.class_names, split.task, split.inputs)
    _require_fitting(split, pool)
    y, classes, seed = pool.labels[0], len(pool.classes), split.seed
    if y.ndim == 2:  # several labels an example: dealt as if they had none
        y, classes = np.zeros(len(y), np.int64), 0
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


def _require_possible(split: Split, clients: int, datasets: Sequence[str]) -> None:
    """What is wrong whatever the files say; first, so that nobody waits for a download to hear it."""
    for dataset in datasets:
        require_known(dataset)
        if split.class_names and dataset in NAMES:
            raise DataError(f"classes names those of one's own data; {dataset} has its own.")
    if clients < 1:
        raise DataError(f"A federation takes at least 1 client, not {clients}.")
    if split.layout == "rotated" and split.groups not in (2, 4):
        raise DataError(
            f"layout=rotated takes 2 or 4 groups (turns of 180° or 90°), not groups={split.groups}."
        )
    groups = {"rotated": split.groups, "mixed": 2}.get(split.layout, 1)
    if groups > clients:
        raise DataError(
            f"layout={split.layout} has {groups} groups and takes at least as many clients, not {clients}."
        )


def _require_fitting(split: Split, pool: Pool) -> None:
    """What the layout needs of the data."""
    if (not pool.classes or pool.labels[0].ndim == 2) and split.layout != "iid":
        what = "several labels an example" if pool.classes else "numbers as targets"
        raise DataError(
            f"layout={split.layout} deals by class, but {split.dataset} has {what}; take layout=iid."
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
    measured = pool.inputs.is_floating_point()
    return ClientData(
        x_train,
        y_train,
        x_test,
        y_test,
        pool.classes,
        share.group,
        features=pool.features,
        brightest=pool.brightest,
        measured=measured,
        form=pool.form,
    )
