"""The data of one site: a file, a folder or a function of its own.

    .npz              x and y, or x_train, y_train, x_test and y_test
    .csv              a table with a target column
    a folder          images, one folder a class; or `train` and `test`, each such a folder; or train.csv and test.csv
    package.module:f  a Python function
    functions         a client of the synthetic family in functions.py

Where a source has no test set, `test-fraction` of it is drawn by the run's seed and the site's name.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from client_app.data import functions, own_function
from client_app.data.client_data import ClientData
from client_app.data.errors import DataError
from client_app.data.examples import BRIGHTEST, Examples, read_arrays
from client_app.data.images import read_images, visible
from client_app.data.layouts import counts_of
from client_app.data.npz import read_npz
from client_app.data.pool import Pool
from client_app.data.split import Split
from client_app.data.tables.table import Reading, join, read_table
from fedbayes.protocol.agreement import AUTO
from fedbayes.protocol.settings import FUNCTION, NAME
from fedbayes.protocol.streams import seed_of

TABLES = ("train.csv", "test.csv")


def load_site(
    source: str, split: Split, site: str, number: int | None = None, clients: int | None = None
) -> ClientData:
    """What this site holds, before the sites have agreed on classes and scale."""
    if source == functions.NAME:
        arrays = functions.observe(number or 0, counts_of(source, split.size, 0), split.seed)
        examples = read_arrays(arrays, source, (), "regression")
    elif FUNCTION.fullmatch(source):
        offered = {"site": site, "number": number, "clients": clients, "path": split.data_dir}
        arrays = own_function.call(source, offered | {"seed": split.seed})
        examples = read_arrays(
            arrays, f"{source} at site {site}", split.class_names, split.task, split.inputs
        )
    else:
        examples = read_path(Path(source).expanduser().absolute(), split)
    train, test = _split(examples, source, split, site)
    form = split.inputs if examples.table is None and examples.x.dtype != torch.uint8 else AUTO
    pool = Pool(examples.x, BRIGHTEST, (examples.y,), examples.classes)
    return ClientData(
        pool.scaled(train), pool.labels_of(train), pool.scaled(test), pool.labels_of(test), examples.classes,
        features=examples.features, declared=examples.declared, measured=examples.x.is_floating_point(),
        form=form,
        tables=(examples.table.rows(train), examples.table.rows(test)) if examples.table else None,
    )  # fmt: skip


def read_path(path: Path, split: Split) -> Examples:
    """A file or folder."""
    names, task = split.class_names, split.task
    if path.is_dir() and not (path / TABLES[0]).is_file():
        return read_arrays(_folder_arrays(path, split.image_size), str(path), names, task)
    reading = Reading.of(split.target, split.ignore, split.kinds, split.categories, split.na, split.rare)
    if path.is_dir():
        files = path / TABLES[0], path / TABLES[1]
        (train, y), (test, y_test) = (read_table(file, reading) for file in files)
        both = join(train, test, reading, files)
        names = names or label_names(y, reading)
        arrays = {"x_train": both.x[: len(y)], "y_train": y, "x_test": both.x[len(y) :], "y_test": y_test}
        return replace(read_arrays(arrays, str(path), names, task), features=both.features, table=both)
    if path.suffix == ".csv":
        table, y = read_table(path, reading)
        names = names or label_names(y, reading)
        rows = read_arrays({"x": table.x, "y": y}, str(path), names, task)
        return replace(rows, features=table.features, table=table)
    if path.suffix == ".npz":
        return read_arrays(read_npz(path), str(path), names, task, split.inputs)
    found = "has another ending" if path.exists() else "does not exist"
    raise DataError(f"{path} {found}; a site's data are an .npz file, a .csv file or a folder of images.")


def label_names(y: np.ndarray, reading: Reading) -> tuple[str, ...]:
    """Of several columns as targets, their names are those of the labels."""
    return tuple(name.strip() for name in reading.target.split(",")) if y.ndim == 2 else ()


def _folder_arrays(folder: Path, size: int) -> dict[str, np.ndarray]:
    names = {path.name for path in visible(folder)}
    if names != {"train", "test"}:
        return dict(zip(("x", "y"), read_images(folder, size), strict=True))
    (x, y), (x_test, y_test) = (read_images(folder / part, size) for part in ("train", "test"))
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test}


def _split(examples: Examples, source: str, split: Split, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Indices for training and for test: as the source has them, or drawn."""
    n = len(examples.y)
    order, held = np.arange(n), examples.n_test
    if held is None:
        order = np.random.default_rng(seed_of(split.seed, site, "test")).permutation(n)
        held = max(1, round(split.test_fraction * n))
    if not 0 < held < n:
        raise DataError(
            f"{source} has {n} examples, {held} of them for the test; both sides take at least one."
        )
    return np.sort(order[: n - held]), np.sort(order[n - held :])


def sites_in(folder: Path) -> dict[str, Path]:
    """The sites of a folder of files and folders, by their names, sorted: what a simulation runs on."""
    paths = visible(folder)
    if not paths:
        raise DataError(f"{folder} is empty; it takes one file or folder for each site.")
    named = {path.stem if path.is_file() else path.name: path for path in paths}
    if len(named) < len(paths):
        raise DataError(f"{folder} has two sites of one name: {', '.join(path.name for path in paths)}.")
    for name in named:
        if not NAME.fullmatch(name):
            raise DataError(f'{folder / name} names a site; names take letters, digits, ".", "_" and "-".')
    return named
