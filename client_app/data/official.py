"""CIFAR-10 and SVHN from the files that torchvision lays out, fetched where they are missing.

torchvision's own readers are not called: the one of CIFAR-10 unpickles its files, and nothing here is ever unpickled;
and both refuse files whose checksum is not the published one. Names, addresses and checksums are torchvision's.
"""

import io
import pickletools
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_app.data.download import fetch, write_whole
from client_app.data.errors import DataError
from client_app.data.pool import Pool
from client_app.data.torchvision_import import torchvision_datasets

DIGITS = tuple("0123456789")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 3 * 32 * 32


def read_cifar10(data_dir: Path) -> Pool:
    """`data-dir/cifar-10-batches-py`, or the archive of it beside."""
    official = torchvision_datasets().CIFAR10
    folder = data_dir / official.base_folder
    files = [folder / name for name, _ in (*official.train_list, *official.test_list)]
    if not all(file.is_file() for file in files):
        archive = data_dir / official.filename
        _obtain(archive, official.url, official.tgz_md5, f"the files of cifar10 into {folder}")
        _unpack(archive, data_dir, official.base_folder)
    parts = [_read_batch(file) for file in files]
    images, labels = (np.concatenate(both) for both in zip(*parts, strict=True))
    return Pool(torch.from_numpy(images), 255, (labels,), OBJECTS)


def _read_batch(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of one batch: a pickled dictionary, whose instructions are read but never carried out."""
    try:
        labels, pixels = _scan(file.read_bytes())
        images = np.frombuffer(pixels, np.uint8).reshape(len(labels), 3, 32, 32)
    except (OSError, ValueError, KeyError, IndexError, UnicodeError) as error:
        raise _damaged(file) from error
    _require_digits(labels, file)
    return images, labels


def _scan(content: bytes) -> tuple[np.ndarray, bytes]:
    """The numbers that follow the word "labels", and the longest text, which is the array after "data"."""
    labels: list[int] = []
    pixels, listening = "", False
    for operation, argument, _ in pickletools.genops(io.BytesIO(content)):
        if isinstance(argument, str):  # a key, a name, or the bytes of the array
            listening = argument == "labels"
            pixels = max(pixels, argument, key=len)
        elif listening and operation.name in ("BININT1", "BININT2", "BININT", "INT"):
            labels.append(int(str(argument)))
    return np.array(labels, np.int64), pixels.encode("latin-1")


def read_svhn(data_dir: Path) -> Pool:
    """`train_32x32.mat` and `test_32x32.mat` in `data-dir`; label 10 is the digit 0."""
    official = torchvision_datasets().SVHN
    images, labels = [], []
    for part in ("train", "test"):
        url, name, md5 = official.split_list[part]
        _obtain(data_dir / name, url, md5, f"train_32x32.mat and test_32x32.mat into {data_dir}")
        x, y = _read_mat(data_dir / name)
        images.append(x.transpose(3, 2, 0, 1))
        labels.append(np.where(y == 10, 0, y))
        _require_digits(labels[-1], data_dir / name)
    return Pool(torch.from_numpy(np.concatenate(images)), 255, (np.concatenate(labels),), DIGITS)


def _read_mat(file: Path) -> tuple[np.ndarray, np.ndarray]:
    from scipy.io import loadmat  # slow to import, and only these users need it

    try:
        stored: dict[str, Any] = loadmat(file)
        x, y = stored["X"], stored["y"].ravel().astype(np.int64)
    except Exception as error:  # scipy raises whatever a broken file makes it stumble over
        raise _damaged(file) from error
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8 or x.shape[3] != len(y):
        raise DataError(
            f"{file} has images X of shape {x.shape} and {len(y)} labels y; it takes (32, 32, 3, n) and n."
        )
    return x, y


def _require_digits(labels: np.ndarray, file: Path) -> None:
    if len(labels) and not 0 <= labels.min() <= labels.max() <= 9:
        raise DataError(f"{file} has labels from {labels.min()} to {labels.max()}; there are ten classes.")


def _obtain(target: Path, url: str, md5: str, what: str) -> None:
    """Make the file be there."""
    if target.is_file():
        return
    try:
        content = fetch([url.removesuffix(target.name)], target.name, md5)
    except OSError as error:
        raise DataError(f"{target} is missing and its download failed ({error}); put {what}.") from error
    try:
        write_whole(target, content)
    except OSError as error:
        raise DataError(f"{target} cannot be written ({error.strerror}); choose another data-dir.") from error


def _unpack(archive: Path, data_dir: Path, folder: str) -> None:
    try:
        with tarfile.open(archive) as stored:
            for member in _files_of(stored, folder):
                content = stored.extractfile(member)
                assert content is not None
                write_whole(data_dir / folder / Path(member.name).name, content.read())
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _damaged(archive) from error


def _files_of(stored: tarfile.TarFile, folder: str) -> Iterator[tarfile.TarInfo]:
    """The plain files directly in `folder`, whatever else a stranger may have put into an archive."""
    return (member for member in stored if member.isfile() and str(Path(member.name).parent) == folder)


def _damaged(file: Path) -> DataError:
    return DataError(
        f"{file} is damaged or cannot be read; delete it to have it downloaded again, or replace it."
    )
