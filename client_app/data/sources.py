"""Data sets as pools: every example of the train and test files together, in that order.

The layouts cut their own train and test sets from the pool, so the official border has no meaning here.
A pool is read once per process.
"""

import gzip
import zlib
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.data import own_function
from client_app.data.download import fetch, write_whole
from client_app.data.errors import DataError
from client_app.data.examples import BRIGHTEST, read_arrays
from client_app.data.npz import read_npz
from client_app.data.official import DIGITS, read_cifar10, read_svhn
from client_app.data.pool import Pool
from client_app.data.torchvision_import import torchvision_datasets
from fedbayes.protocol.agreement import AUTO
from fedbayes.protocol.objects import is_pool

TORCHVISION = {"mnist": "MNIST", "fmnist": "FashionMNIST"}  # our name → torchvision's class and folder
NAMES = ("digits", "diabetes", *TORCHVISION, "cifar10", "svhn")
MIXED = {name: pair for pair in (("mnist", "fmnist"), ("cifar10", "svhn")) for name in pair}
FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
# What torchvision's IDX reader and gzip raise for a file that is cut off or is something else.
DAMAGE = (AssertionError, EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError, zlib.error)


def require_known(dataset: str) -> None:
    if dataset not in NAMES and not dataset.endswith(".npz") and not is_pool(dataset):
        raise DataError(
            f'There is no data set "{dataset}"; dataset takes {", ".join(NAMES)}, functions, the path of an '
            ".npz file or of a folder of sites, or package.module:function."
        )


def mixed_pair(dataset: str) -> tuple[str, ...]:
    """The two data sets of layout=mixed: a pair with a comma between, or a data set that has a partner."""
    pair = MIXED.get(dataset) or tuple(dataset.split(","))
    if len(pair) != 2:
        raise DataError(
            f"layout=mixed takes {', '.join(MIXED)}, or two data sets with a comma between such as a.npz,b.npz, "
            f"not dataset={dataset}."
        )
    return pair


@lru_cache(maxsize=2)
def read_pool(
    datasets: tuple[str, ...],
    data_dir: str,
    classes: tuple[str, ...] = (),
    task: str = "auto",
    form: str = AUTO,
) -> Pool:
    """The pool of these data sets; with several of them, the classes are only numbers unless both name the same."""
    pools = [
        _read_one(name, Path(data_dir).expanduser().absolute(), classes, task, form) for name in datasets
    ]
    if len(pools) == 1:
        return pools[0]
    first, second = pools
    if (first.inputs.shape[1:], first.inputs.dtype) != (second.inputs.shape[1:], second.inputs.dtype):
        raise DataError(f"The examples of {' and '.join(datasets)} differ in shape and cannot be mixed.")
    if len(first.classes) != len(second.classes):
        raise DataError(
            f"{datasets[0]} has {len(first.classes)} classes and {datasets[1]} {len(second.classes)}; "
            "layout=mixed takes as many of both."
        )
    names = first.classes if first.classes == second.classes else tuple(map(str, range(len(first.classes))))
    inputs = torch.cat([first.inputs, second.inputs])
    return Pool(inputs, first.brightest, (first.labels[0], second.labels[0]), names)


def _read_one(dataset: str, data_dir: Path, classes: tuple[str, ...], task: str, form: str) -> Pool:
    match dataset:
        case "digits":
            return _read_digits()
        case "diabetes":
            return _read_diabetes()
        case "cifar10":
            return read_cifar10(data_dir)
        case "svhn":
            return read_svhn(data_dir)
        case "mnist" | "fmnist":
            return _read_idx(dataset, data_dir)
        case file:
            arrays = own_function.call(file, {}) if is_pool(file) else read_npz(Path(file))
            examples = read_arrays(arrays, file, classes, task, form)
            form = form if examples.x.dtype != torch.uint8 else AUTO
            return Pool(examples.x, BRIGHTEST, (examples.y,), examples.classes, form=form)


def _read_digits() -> Pool:
    """What scikit-learn's load_digits gives, from its file: importing that function takes a second."""
    found = find_spec("sklearn")
    file = Path(str(found.origin)).parent / "datasets" / "data" / "digits.csv.gz" if found else Path()
    if file.is_file():
        table = np.loadtxt(file, np.uint8, delimiter=",")
    else:  # a version that keeps it elsewhere
        from sklearn.datasets import load_digits

        digits = load_digits()
        table = np.column_stack([digits.data, digits.target]).astype(np.uint8)
    images = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8).copy())
    return Pool(images, 16, (table[:, -1].astype(np.int64),), DIGITS)


def _read_diabetes() -> Pool:
    """442 people, ten measurements of each in their own units, and the progress of the disease a year later."""
    from sklearn.datasets import load_diabetes

    people = load_diabetes(scaled=False)
    inputs = torch.from_numpy(people.data.astype(np.float32))
    return Pool(inputs, BRIGHTEST, (people.target.astype(np.float32),), (), tuple(people.feature_names))


def _read_idx(dataset: str, data_dir: Path) -> Pool:
    folder = data_dir / TORCHVISION[dataset] / "raw"
    datasets = torchvision_datasets()
    _complete(dataset, folder, getattr(datasets, TORCHVISION[dataset]))
    parts = []
    for image_file, label_file in (FILES[:2], FILES[2:]):
        images = _read(folder / image_file, datasets.mnist.read_image_file)
        labels = _read(folder / label_file, datasets.mnist.read_label_file)
        if len(images) != len(labels):
            raise DataError(
                f"{folder / image_file} has {len(images)} images but {label_file} beside it has "
                f"{len(labels)} labels; put the official {dataset} files there."
            )
        if labels.numel() and labels.max() >= len(DIGITS):
            raise DataError(
                f"{folder / label_file} has the label {int(labels.max())}; {dataset} takes 0 to 9."
            )
        parts.append((images, labels))
    if parts[0][0].shape[1:] != parts[1][0].shape[1:]:
        raise DataError(f"The train and test images of {dataset} in {folder} differ in shape.")
    images, labels = (torch.cat(both) for both in zip(*parts, strict=True))
    classes = tuple(datasets.FashionMNIST.classes) if dataset == "fmnist" else DIGITS
    return Pool(images.unsqueeze(1), 255, (labels.numpy(),), classes)


def _read(file: Path, reader: Callable[[str], Tensor]) -> Tensor:
    try:
        return reader(str(file))
    except DAMAGE as error:
        raise DataError(
            f"{file} is damaged or cannot be read; delete it to have it downloaded again, or replace it."
        ) from error


def _complete(dataset: str, folder: Path, official: Any) -> None:
    """Make the four files be there: unpack those that lie there as .gz, download the others."""
    for packed_name, md5 in official.resources:
        target, packed = folder / Path(packed_name).stem, folder / packed_name
        if target.is_file():
            continue
        try:
            content = packed.read_bytes() if packed.is_file() else fetch(official.mirrors, packed_name, md5)
        except OSError as error:
            raise DataError(
                f"{dataset} is incomplete and the download of {packed_name} failed ({error}); put "
                f"{', '.join(FILES[:3])} and {FILES[3]} (or the same as .gz) into {folder}."
            ) from error
        try:
            unpacked = gzip.decompress(content)
        except DAMAGE as error:
            raise DataError(
                f"{packed} is damaged; delete it to have it downloaded, or replace it."
            ) from error
        try:
            write_whole(target, unpacked)
        except OSError as error:
            raise DataError(
                f"{target} cannot be written ({error.strerror}); choose another data-dir."
            ) from error
