"""Data sets as pools: every image of the official train and test files together, in that order.

The layouts cut their own train and test sets from the pool, so the official border has no meaning here.
A pool stays uint8 (MNIST: 55 MB) and is read once per process; only a client's share becomes float32.
"""

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from client_app.data.download import fetch, write_whole
from client_app.data.errors import DataError
from client_app.data.torchvision_import import torchvision_datasets

DIGITS = tuple("0123456789")
TORCHVISION = {"mnist": "MNIST", "fmnist": "FashionMNIST"}  # our name → torchvision's class and folder
NAMES = ("digits", *TORCHVISION)
FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
# What torchvision's IDX reader and gzip raise for a file that is cut off or is something else.
DAMAGE = (AssertionError, EOFError, KeyError, OSError, RuntimeError, TypeError, ValueError, zlib.error)


@dataclass(frozen=True)
class Pool:
    """The images of one or more data sets of the same shape, one data set after the other."""

    images: Tensor  # uint8 (n, channels, height, width), 0 … brightest
    brightest: int
    labels: tuple[np.ndarray, ...]  # int64, one array for each data set
    classes: tuple[str, ...]

    def scaled(self, indices: np.ndarray) -> Tensor:
        """These images as float32, 0 → −1 and the brightest value → 1, both exactly."""
        return self.images[torch.from_numpy(indices)].float().div_(self.brightest / 2).sub_(1)

    def labels_of(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(np.concatenate(self.labels)[indices])


def require_known(dataset: str) -> None:
    if dataset not in NAMES:
        raise DataError(f'There is no data set "{dataset}"; dataset takes {", ".join(NAMES)}.')


@lru_cache(maxsize=2)
def read_pool(datasets: tuple[str, ...], data_dir: str) -> Pool:
    """The pool of these data sets; with several of them the classes are only numbers, shared by all."""
    pools = [_read_digits() if name == "digits" else _read_torchvision(name, data_dir) for name in datasets]
    if len(pools) == 1:
        return pools[0]
    if len({(pool.images.shape[1:], pool.brightest) for pool in pools}) > 1:
        raise DataError(f"The images of {' and '.join(datasets)} differ in shape and cannot be mixed.")
    labels = tuple(labels for pool in pools for labels in pool.labels)
    return Pool(torch.cat([pool.images for pool in pools]), pools[0].brightest, labels, DIGITS)


def _read_digits() -> Pool:
    from sklearn.datasets import load_digits  # slow to import, and only these users need it

    digits = load_digits()
    images = torch.from_numpy(digits.images.astype(np.uint8)).unsqueeze(1)
    return Pool(images, 16, (digits.target.astype(np.int64),), DIGITS)


def _read_torchvision(dataset: str, data_dir: str) -> Pool:
    folder = Path(data_dir).expanduser().absolute() / TORCHVISION[dataset] / "raw"
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
