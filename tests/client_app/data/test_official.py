"""CIFAR-10 and SVHN in their official formats, from small files that the test writes."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from client_app.data import DataError, check, load
from client_app.data.official import OBJECTS
from client_app.data.sources import read_pool

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def cifar_batches(each: int = 20) -> tuple[dict[str, bytes], np.ndarray, np.ndarray]:
    """Files by name, all images (n, 3, 32, 32) and all labels, with as many of each class."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (6 * each, 3072), dtype=np.uint8)
    labels = random.permutation(np.arange(6 * each) % 10)
    files = {}
    for number, name in enumerate(BATCHES):
        part = slice(number * each, (number + 1) * each)
        batch = {
            "batch_label": f"batch {number}", "labels": labels[part].tolist(), "data": images[part],
            "filenames": [f"{i}.png" for i in range(each)],
        }  # fmt: skip
        files[name] = pickle.dumps(batch, protocol=2)
    return files, images.reshape(-1, 3, 32, 32), labels


def write_cifar(data_dir: Path, files: dict[str, bytes]) -> Path:
    folder = data_dir / "cifar-10-batches-py"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_cifar_10_is_pooled_and_read_exactly(tmp_path: Path, no_network) -> None:
    files, images, labels = cifar_batches()
    write_cifar(tmp_path, files)
    pool = read_pool(("cifar10",), str(tmp_path))
    assert np.array_equal(pool.inputs.numpy(), images)
    assert pool.labels[0].tolist() == labels.tolist()
    assert (pool.classes[0], pool.classes[9]) == ("airplane", "truck") and no_network == []


def python_2_batch(images: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2's cPickle wrote the official ones: str and not unicode, lists in parts of 1000."""

    def text(word: bytes) -> bytes:
        return b"U" + bytes([len(word)]) + word

    parts = [labels[i : i + 1000] for i in range(0, len(labels), 1000)]
    numbers = b"".join(b"(" + b"".join(b"K" + bytes([label]) for label in part) + b"e" for part in parts)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87R(K\x01"
        + b"M" + len(labels).to_bytes(2, "little") + b"M\x00\x0c\x86"
        + b"cnumpy\ndtype\nq\x0bU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T" + images.size.to_bytes(4, "little") + images.tobytes() + b"tb"
    )  # fmt: skip
    return (
        b"\x80\x02}q\x01(" + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"labels") + b"]" + numbers + text(b"data") + array + b"u."
    )  # fmt: skip


def test_a_batch_as_python_2_wrote_it(tmp_path: Path) -> None:
    files, _, _ = cifar_batches()
    random = np.random.default_rng(1)
    images, labels = random.integers(0, 256, (2500, 3072), dtype=np.uint8), (np.arange(2500) % 10).tolist()
    files["data_batch_1"] = python_2_batch(images, labels)
    original = pickle.loads(files["data_batch_1"], encoding="latin1")
    assert original["labels"] == labels and np.array_equal(original["data"], images)
    write_cifar(tmp_path, files)
    pool = read_pool(("cifar10",), str(tmp_path))
    assert np.array_equal(pool.inputs[:2500].numpy().reshape(-1, 3072), images)
    assert pool.labels[0][:2500].tolist() == labels and len(pool.labels[0]) == 2600


class Trap:
    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


def test_cifar_10_is_never_unpickled(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files, images, _ = cifar_batches()
    files["data_batch_2"] = pickle.dumps({"trap": Trap(), "labels": [1], "data": images[:1]}, protocol=2)
    write_cifar(tmp_path, files)
    assert len(read_pool(("cifar10",), str(tmp_path)).labels[0]) == 101
    assert not Path("unpickled").exists()


def test_the_archive_is_unpacked_and_nothing_but_its_batches(tmp_path: Path, no_network) -> None:
    files, images, _ = cifar_batches()
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        inside = {f"cifar-10-batches-py/{name}": content for name, content in files.items()}
        for name, content in (inside | {"../evil": b"!", "cifar-10-batches-py/../evil2": b"!"}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert np.array_equal(read_pool(("cifar10",), str(tmp_path)).inputs.numpy(), images)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
    ]
    assert not (tmp_path.parent / "evil").exists() and no_network == []


def test_a_missing_archive_says_what_to_put_where(tmp_path: Path, no_network) -> None:
    with pytest.raises(DataError) as caught:
        read_pool(("cifar10",), str(tmp_path))
    assert str(caught.value) == (
        f"{tmp_path}/cifar-10-python.tar.gz is missing and its download failed (no network in tests); put the "
        f"files of cifar10 into {tmp_path}/cifar-10-batches-py."
    )
    assert no_network == ["https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"]


@pytest.mark.parametrize("damage", [lambda c: c[:-30_000], lambda c: b"no pickle", lambda c: c[:40]])
def test_a_damaged_batch_is_named(tmp_path: Path, damage) -> None:
    files, _, _ = cifar_batches()
    files["data_batch_3"] = damage(files["data_batch_3"])
    folder = write_cifar(tmp_path, files)
    with pytest.raises(DataError, match=f"{folder}/data_batch_3 is damaged"):
        read_pool(("cifar10",), str(tmp_path))


# ---------------------------------------------------------------- SVHN


def write_svhn(data_dir: Path, counts: dict[int, int], test: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """The official format: X (32, 32, 3, n) and y (n, 1) with 10 for the digit 0; returns n first, 0 for 0."""
    random = np.random.default_rng(0)
    y = random.permutation(np.repeat(list(counts), list(counts.values())))
    x = random.integers(0, 256, (32, 32, 3, len(y)), dtype=np.uint8)
    border = len(y) - test
    for name, part in (("train", slice(0, border)), ("test", slice(border, None))):
        savemat(data_dir / f"{name}_32x32.mat", {"X": x[..., part], "y": y[part, None].astype(np.uint8)})
    return np.moveaxis(x, 3, 0), np.where(y == 10, 0, y)


EQUAL = dict.fromkeys(range(1, 11), 12)


def test_svhn_is_pooled_and_label_10_is_the_digit_0(tmp_path: Path, no_network) -> None:
    images, digits = write_svhn(tmp_path, EQUAL)
    pool = read_pool(("svhn",), str(tmp_path))
    assert pool.inputs.shape == (120, 3, 32, 32)
    assert np.array_equal(pool.inputs.permute(0, 2, 3, 1).numpy(), images)
    assert pool.labels[0].tolist() == digits.tolist()
    assert np.bincount(pool.labels[0]).tolist() == [12] * 10
    assert pool.classes == tuple("0123456789") and no_network == []


def test_svhn_s_unequal_classes_are_counted(tmp_path: Path, settings) -> None:
    write_svhn(tmp_path, EQUAL | {9: 7, 1: 40})
    chosen = settings(dataset="svhn", data_dir=str(tmp_path), size="1+1")
    shares = [load(chosen, partition, 6) for partition in range(6)]  # each class is held by three clients
    assert sum(int((share.y_train == 9).sum() + (share.y_test == 9).sum()) for share in shares) == 6
    with pytest.raises(DataError) as caught:
        check(settings(dataset="svhn", data_dir=str(tmp_path), size="2+1"), 6)
    assert str(caught.value) == (
        'svhn has 7 images of class "9" but layout=labels size=2+1 with 6 clients needs 9; '
        "take fewer clients or a smaller size."
    )


def test_wrong_mat_files_are_named(tmp_path: Path) -> None:
    write_svhn(tmp_path, EQUAL)
    test = tmp_path / "test_32x32.mat"
    savemat(test, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.array([[1], [2], [3]])})
    with pytest.raises(DataError, match=f"{test} has images X of shape .* and 3 labels y"):
        read_pool(("svhn",), str(tmp_path))
    savemat(test, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])})
    with pytest.raises(DataError, match=f"{test} has labels from 1 to 11; there are ten classes"):
        read_pool(("svhn",), str(tmp_path))
    for content in (b"", b"MATLAB 5.0 MAT-file, no more", test.read_bytes()[:300]):
        test.write_bytes(content)
        with pytest.raises(DataError, match=f"{test} is damaged"):
            read_pool(("svhn",), str(tmp_path))
    test.unlink()
    with pytest.raises(DataError, match=f"{test} is missing and its download failed .* into {tmp_path}"):
        read_pool(("svhn",), str(tmp_path))


# ---------------------------------------------------------------- both


def test_twenty_clients_take_half_the_classes_and_both_data_sets_mix(tmp_path: Path, settings) -> None:
    files, _, _ = cifar_batches(each=100)
    write_cifar(tmp_path, files)
    write_svhn(tmp_path, dict.fromkeys(range(1, 11), 60), test=100)
    chosen = settings(dataset="cifar10", data_dir=str(tmp_path), size="2+4")
    held = [load(chosen, partition, 20) for partition in range(20)]
    assert all(np.bincount(client.y_train, minlength=10).tolist().count(2) == 5 for client in held)
    assert np.sum([np.bincount(client.y_test, minlength=10) for client in held], 0).tolist() == [40] * 10
    assert held[0].classes == OBJECTS
    turned = [
        load(settings(dataset="cifar10", data_dir=str(tmp_path), size="2+1", layout="rotated"), partition, 20)
        for partition in (0, 9, 10, 19)
    ]
    assert [client.group for client in turned] == [0, 0, 1, 1]
    assert all(np.bincount(client.y_train, minlength=10).tolist() == [2] * 10 for client in turned)

    chosen = settings(dataset="svhn", data_dir=str(tmp_path), size="10+10", layout="mixed")
    client = load(chosen, 0, 2)
    assert (client.x_train.shape, client.classes) == ((100, 3, 32, 32), tuple("0123456789"))
    chosen = settings(dataset="svhn", data_dir=str(tmp_path), size="10+10", layout="rotated")
    assert [load(chosen, partition, 4).group for partition in range(4)] == [0, 0, 1, 1]
