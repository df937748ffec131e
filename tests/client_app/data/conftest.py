"""Settings by keyword, data sets in the official file format, and empty caches for every test."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

import client_app.data as data
from client_app.data import download, sources
from fedbayes.protocol.settings import Settings, defaults


@pytest.fixture(autouse=True)
def empty_caches() -> Iterator[None]:
    yield
    data._clients.clear()
    data._shares.cache_clear()
    sources.read_pool.cache_clear()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No test reaches a network; the list has the addresses that were asked for."""
    asked: list[str] = []

    def refuse(request, timeout):
        asked.append(request.full_url)
        raise URLError("no network in tests")

    monkeypatch.setattr(download, "urlopen", refuse)
    return asked


@pytest.fixture
def settings() -> Callable[..., Settings]:
    def make(**values: object) -> Settings:
        own = {name.replace("_", "-"): value for name, value in values.items()}
        return Settings.parse({**defaults(), **own})

    return make


def idx(array: np.ndarray) -> bytes:
    """The IDX format: two zero bytes, the type (8 = uint8), the number of dimensions, each as big-endian."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def write_set(tmp_path: Path) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Write a data set of random 6×6 images, `train` + `test` of them; returns images and labels, pooled."""

    def write(folder: str = "MNIST", train: int = 300, test: int = 100) -> tuple[np.ndarray, np.ndarray]:
        raw = tmp_path / folder / "raw"
        raw.mkdir(parents=True)
        random = np.random.default_rng(len(folder))
        images = random.integers(0, 256, (train + test, 6, 6), dtype=np.uint8)
        labels = np.arange(train + test, dtype=np.uint8) % 10
        for name, part in (("train", slice(0, train)), ("t10k", slice(train, None))):
            (raw / f"{name}-images-idx3-ubyte").write_bytes(idx(images[part]))
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels[part]))
        return images, labels

    return write
