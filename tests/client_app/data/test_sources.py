"""Reading data sets: exact values from official files, and one clear sentence for everything else."""

import gzip
import hashlib
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from client_app.data import DataError, download, sources
from client_app.data.sources import FILES, read_pool
from client_app.data.torchvision_import import torchvision_datasets


def test_digits_are_scikit_learn_s_scaled_to_one() -> None:
    pool = read_pool(("digits",), "nowhere")
    bunch = load_digits()
    assert pool.inputs.shape == (1797, 1, 8, 8)
    assert pool.inputs.dtype == torch.uint8
    assert pool.labels[0].tolist() == bunch.target.tolist()
    scaled = pool.scaled(np.arange(1797))
    assert scaled.dtype == torch.float32
    assert np.array_equal(scaled[:, 0].numpy(), bunch.images / 8 - 1)  # eighths are exact
    assert (scaled.min().item(), scaled.max().item()) == (-1.0, 1.0)
    assert pool.classes == tuple("0123456789")


@pytest.mark.parametrize(("dataset", "folder"), [("mnist", "MNIST"), ("fmnist", "FashionMNIST")])
def test_official_files_are_read_exactly_and_pooled(dataset, folder, tmp_path, write_set, no_network) -> None:
    images, labels = write_set(folder)
    pool = read_pool((dataset,), str(tmp_path))
    assert np.array_equal(pool.inputs[:, 0].numpy(), images)
    assert np.array_equal(pool.labels[0], labels)
    assert (pool.classes[0], pool.classes[9]) == {
        "mnist": ("0", "9"),
        "fmnist": ("T-shirt/top", "Ankle boot"),
    }[dataset]
    assert no_network == []


def test_bytes_are_scaled_exactly(tmp_path, write_set) -> None:
    images, _ = write_set()
    scaled = read_pool(("mnist",), str(tmp_path)).scaled(np.arange(400))[:, 0].double().numpy()
    assert np.abs(scaled - (images / 127.5 - 1)).max() < 1e-7
    assert (scaled[images == 0] == -1).all()
    assert (scaled[images == 255] == 1).all()


def test_packed_files_need_no_network(tmp_path, write_set, no_network) -> None:
    images, _ = write_set()
    raw = tmp_path / "MNIST" / "raw"
    for name in FILES[:3]:
        (raw / f"{name}.gz").write_bytes(gzip.compress((raw / name).read_bytes()))
        (raw / name).unlink()
    assert np.array_equal(read_pool(("mnist",), str(tmp_path)).inputs[:, 0].numpy(), images)
    assert no_network == []
    assert not list(raw.glob(".*")), "no temporary file is left"


def test_missing_files_say_what_to_put_where(tmp_path, no_network) -> None:
    with pytest.raises(DataError) as caught:
        read_pool(("fmnist",), str(tmp_path / "data"))
    text = str(caught.value)
    assert all(name in text for name in FILES)
    assert f"into {tmp_path}/data/FashionMNIST/raw." in text
    assert "failed (no network in tests)" in text
    assert no_network, "a download was tried"
    assert not (tmp_path / "data").exists(), "nothing is made before there is something to put there"


def test_a_silent_network_is_given_up(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(download, "WAIT", 0.05)
    monkeypatch.setattr(download, "urlopen", lambda request, timeout: time.sleep(5))
    with pytest.raises(DataError, match=r"failed \(no answer within 0.05 s\)"):
        read_pool(("mnist",), str(tmp_path))


class Answer(bytes):
    """What urlopen returns: a context with read()."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def read(self) -> bytes:
        return bytes(self)


def test_download_takes_the_first_mirror_with_the_right_checksum(tmp_path, write_set, monkeypatch) -> None:
    images, _ = write_set()
    raw = tmp_path / "MNIST" / "raw"
    packed = {f"{name}.gz": gzip.compress((raw / name).read_bytes()) for name in FILES}
    for name in FILES:
        (raw / name).unlink()
    official = SimpleNamespace(
        mirrors=["http://bad/", "http://good/"],
        resources=[(name, hashlib.md5(content).hexdigest()) for name, content in packed.items()],
    )
    asked = []

    def urlopen(request, timeout):
        host, name = request.full_url.removeprefix("http://").split("/")
        asked.append(host)
        return Answer(packed[name] if host == "good" else b"<html>please log in</html>")

    monkeypatch.setattr(download, "urlopen", urlopen)
    sources._complete("mnist", raw, official)
    assert asked == ["bad", "good"] * 4
    assert np.array_equal(read_pool(("mnist",), str(tmp_path)).inputs[:, 0].numpy(), images)

    (raw / FILES[0]).unlink()
    official.mirrors = ["http://bad/"]
    with pytest.raises(DataError, match="wrong checksum"):
        sources._complete("mnist", raw, official)
    assert not (raw / FILES[0]).exists()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 3, 9, -1])
def test_a_cut_file_is_named(name: str, keep: int, tmp_path, write_set) -> None:
    write_set()
    file = tmp_path / "MNIST" / "raw" / name
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(DataError, match=f"{file} is damaged"):
        read_pool(("mnist",), str(tmp_path))


def test_a_cut_packed_file_is_named(tmp_path, write_set) -> None:
    write_set()
    file = tmp_path / "MNIST" / "raw" / FILES[1]
    packed = Path(f"{file}.gz")
    packed.write_bytes(gzip.compress(file.read_bytes())[:-9])
    file.unlink()
    with pytest.raises(DataError, match=f"{packed} is damaged"):
        read_pool(("mnist",), str(tmp_path))


def test_images_and_labels_of_different_sets_are_refused(tmp_path, write_set) -> None:
    write_set()
    raw = tmp_path / "MNIST" / "raw"
    (raw / FILES[1]).write_bytes((raw / FILES[3]).read_bytes())
    with pytest.raises(
        DataError, match="has 300 images but train-labels-idx1-ubyte beside it has 100 labels"
    ):
        read_pool(("mnist",), str(tmp_path))


def test_digits_are_the_same_wherever_scikit_learn_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = sources._read_digits()
    monkeypatch.setattr(sources, "find_spec", lambda _: None)
    other = sources._read_digits()
    assert torch.equal(usual.inputs, other.inputs) and np.array_equal(usual.labels[0], other.labels[0])


def test_torchvision_and_scikit_learn_are_imported_only_when_needed() -> None:
    code = (
        "import sys; from client_app.data.sources import read_pool\n"
        "read_pool(('digits',), ''); print('torchvision' in sys.modules or 'sklearn' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "False\n"


def test_torchvision_can_be_imported_whichever_torch_is_beside_it() -> None:
    assert torchvision_datasets().MNIST.__name__ == "MNIST"
    assert torchvision_datasets() is sys.modules["torchvision.datasets"]
