"""One's own pooled .npz: what is read, how it is dealt, and one sentence for every wrong file."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from client_app.data import DataError, check, load
from client_app.data.sources import read_pool

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def save(name: str = "own.npz", **arrays: object) -> str:
        np.savez(tmp_path / name, **arrays)  # type: ignore[arg-type]
        return str(tmp_path / name)

    return save


def pool(file: str, *classes: str):
    return read_pool((file,), "nowhere", tuple(classes))


IMAGES = np.random.default_rng(0).integers(0, 256, (60, 6, 5), dtype=np.uint8)
VECTORS = np.random.default_rng(0).normal(size=(60, 4))
LABELS = np.arange(60) % 3


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (IMAGES, (60, 1, 6, 5)),
        (np.stack([IMAGES] * 3, -1), (60, 3, 6, 5)),
        (np.stack([IMAGES] * 3, 1), (60, 3, 6, 5)),
        (IMAGES[..., None], (60, 1, 6, 5)),
    ],
)
def test_images_are_read_with_their_channels_anywhere(write: Write, x: np.ndarray, shape: tuple) -> None:
    read = pool(write(x=x, y=LABELS))
    assert read.inputs.shape == shape and read.inputs.dtype == torch.uint8
    for channel in range(shape[1]):
        assert np.array_equal(read.inputs[:, channel].numpy(), IMAGES)
    assert read.scaled(np.arange(60)).min() >= -1
    assert np.allclose(read.scaled(np.arange(60))[:, 0], IMAGES / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16, np.uint8, bool])
def test_vectors_become_float32(write: Write, kind: type) -> None:
    x = (VECTORS * 50).astype(kind)
    read = pool(write(x=x, y=LABELS))
    assert read.inputs.dtype == torch.float32
    assert np.array_equal(read.scaled(np.arange(60)).numpy(), x.astype(np.float32))
    assert pool(write("one.npz", x=x[:, 0], y=LABELS)).inputs.shape == (60, 1)


def test_train_and_test_are_pooled(write: Write) -> None:
    file = write(x_train=IMAGES[:40], y_train=LABELS[:40], x_test=IMAGES[40:], y_test=LABELS[40:, None])
    read = pool(file)
    assert np.array_equal(read.inputs[:, 0].numpy(), IMAGES)
    assert read.labels[0].tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("y", "declared", "classes", "labels"),
    [
        ([3, 10, 3, 7], (), ("3", "7", "10"), [0, 2, 0, 1]),
        (["b", "a", "c", "a"], (), ("a", "b", "c"), [1, 0, 2, 0]),
        ([b"b", b"a", b"b", b"a"], (), ("a", "b"), [1, 0, 1, 0]),
        ([1.0, 0.0, 2.0, 1.0], (), ("0", "1", "2"), [1, 0, 2, 1]),
        (["b", "a", "b", "a"], ("b", "a", "c"), ("b", "a", "c"), [0, 1, 0, 1]),
        ([0, 2, 1, 0], ("cat", "dog", "cow"), ("cat", "dog", "cow"), [0, 2, 1, 0]),
        ([-1, 1, 1, -1], ("1", "-1"), ("1", "-1"), [1, 0, 0, 1]),
        ([0.5, 1.0, 2.25, -1.0], (), (), [0.5, 1.0, 2.25, -1.0]),
    ],
)
def test_labels(write: Write, y: list, declared: tuple, classes: tuple, labels: list) -> None:
    read = pool(write(x=VECTORS[:4], y=y), *declared)
    assert (read.classes, read.labels[0].tolist()) == (classes, labels)


def test_class_names_in_the_file(write: Write) -> None:
    assert pool(write(x=VECTORS, y=LABELS, classes=["x", "y", "z"])).classes == ("x", "y", "z")


class Trap:
    """Unpickling this would leave a trace."""

    def __reduce__(self):
        return (Path.touch, (Path("unpickled"),))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": VECTORS}, 'lacks the array "y"; it takes x and y, or x_train, y_train, x_test and y_test.'),
        (
            {"x_train": VECTORS, "y_train": LABELS, "x_test": VECTORS},
            'lacks the array "y_test"; it takes x and y, or x_train, y_train, x_test and y_test.',
        ),
        ({"x": VECTORS, "y": LABELS[:50]}, "has 60 examples in x but 50 in y."),
        (
            {"x_train": VECTORS, "y_train": LABELS, "x_test": VECTORS[:9], "y_test": LABELS[:8]},
            "has 9 examples in x_test but 8 in y_test.",
        ),
        (
            {"x_train": VECTORS, "y_train": LABELS, "x_test": VECTORS[:, :3], "y_test": LABELS},
            "has inputs of shape (4,) in x_train but (3,) in x_test, or of another type.",
        ),
        (
            {"x": np.where(VECTORS[7, 2] == VECTORS, np.nan, VECTORS), "y": LABELS},
            "has a value in x that is not finite (NaN or infinite), first in example 7.",
        ),
        (
            {"x": VECTORS, "y": np.where(LABELS == 1, np.nan, LABELS)},
            "has a target that is not finite, first in example 1.",
        ),
        ({"x": VECTORS, "y": LABELS - 1}, "has the label -1; labels count from 0, unless classes names them."),
        (
            {"x": VECTORS, "y": LABELS, "classes": ["cat", "dog"]},
            'has the label "2", which is not among the classes cat, dog.',
        ),
        (
            {"x": VECTORS[:2], "y": ["cat", "cow"], "classes": ["cat", "dog"]},
            'has the label "cow", which is not among the classes cat, dog.',
        ),
        (
            {"x": VECTORS, "y": 2 * np.eye(3)[LABELS]},
            "has y of shape (60, 3) and type float64; it takes one label or number an example, or a row of 0 and 1.",
        ),
        (
            {"x": np.array(["a"] * 60), "y": LABELS},
            "has x of shape (60,) and type <U1; it takes numbers: images (n, height, width[, channels]) or "
            "vectors (n, features).",
        ),
        ({"x": np.zeros((3, 5, 6, 7)), "y": [0, 1, 2]}, "has x of shape (3, 5, 6, 7); images take 1, 3 or 4 channels."),
        ({"x": VECTORS[:0], "y": LABELS[:0]}, "has no examples."),
        (
            {"x": np.array([Trap(), Trap()], dtype=object), "y": [0, 1]},
            "holds pickled Python objects, which are never loaded; save plain arrays of numbers or text with "
            "numpy.savez.",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(write: Write, tmp_path, monkeypatch, arrays: dict, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(**arrays)
    with pytest.raises(DataError) as caught:
        pool(file)
    assert str(caught.value) == f"{file} {sentence}"
    assert not Path("unpickled").exists()


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    with pytest.raises(DataError, match=f"There is no file {file}"):
        pool(str(file))
    np.savez(file, x=VECTORS, y=LABELS)
    whole = file.read_bytes()
    single = io.BytesIO()
    np.save(single, VECTORS)
    for content in (b"", whole[:-60], b"x,y\n1,2\n", single.getvalue()):
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"{file} is no .npz file or is cut off; save x and y with"):
            pool(str(file))
    file.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    with pytest.raises(DataError, match=f"{file} is damaged"):
        pool(str(file))


# ---------------------------------------------------------------- dealt by a layout


@pytest.mark.parametrize("layout", ["labels", "iid", "dirichlet", "rotated"])
def test_every_layout_deals_images(write: Write, settings, layout: str) -> None:
    x = np.random.default_rng(1).integers(0, 256, (80, 5, 5, 3), dtype=np.uint8)
    y = np.arange(80) % 4
    chosen = settings(dataset=write(x=x, y=y), layout=layout, size="2+3")
    label_of = {image.tobytes(): label for image, label in zip(x, y, strict=True)}
    for partition in range(4):
        client = load(chosen, partition, 4)
        assert (len(client.y_train), len(client.y_test)) == ((8, 12) if layout == "rotated" else (4, 6))
        turned = torch.rot90(client.x_train, -2 * (client.group or 0), (2, 3))
        images = ((turned + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        assert [label_of[image.tobytes()] for image in images] == client.y_train.tolist()
        assert client.group == (partition // 2 if layout == "rotated" else None)


def test_two_files_can_be_mixed(write: Write, settings) -> None:
    pair = [write(f"{name}.npz", x=np.full((80, 2), value), y=np.arange(80) % 2) for name, value in
            (("a", 1.0), ("b", 2.0))]  # fmt: skip
    chosen = settings(dataset=",".join(pair), layout="mixed", size="10+10")
    first, last = load(chosen, 0, 2), load(chosen, 1, 2)
    assert (first.x_train[:, 0] == 1).float().mean().item() == pytest.approx(0.9)
    assert (last.x_train[:, 0] == 2).float().mean().item() == pytest.approx(0.9)
    other = write("c.npz", x=np.zeros((80, 3)), y=np.arange(80) % 2)
    with pytest.raises(DataError, match="differ in shape and cannot be mixed"):
        check(settings(dataset=f"{pair[0]},{other}", layout="mixed"), 2)
    other = write("d.npz", x=np.zeros((80, 2)), y=np.arange(80) % 4)
    with pytest.raises(DataError, match=r"a.npz has 2 classes and .*d.npz 4; layout=mixed takes as many"):
        check(settings(dataset=f"{pair[0]},{other}", layout="mixed"), 2)


def test_numbers_as_targets_are_dealt_iid(write: Write, settings) -> None:
    file = write(x=VECTORS, y=VECTORS[:, 0])
    client = load(settings(dataset=file, layout="iid", size="6+4"), 1, 6)
    assert (client.classes, client.y_train.dtype, len(client.y_train), len(client.y_test)) == (
        (), torch.float32, 6, 4,
    )  # fmt: skip
    assert torch.equal(client.y_train, client.x_train[:, 0])
    with pytest.raises(DataError, match=f"layout=labels deals by class, but {file} has numbers as targets"):
        check(settings(dataset=file), 6)


def test_sizes_by_word_use_up_what_there_is(write: Write, settings) -> None:
    file = write(x=np.zeros((400, 2)), y=np.arange(400) % 4)  # 100 of each class, held by 5 of 10 clients
    for size, counts in (("small", (1, 19)), ("medium", (4, 16)), ("large", (15, 5))):
        client = load(settings(dataset=file, size=size), 0, 10)
        assert (len(client.y_train), len(client.y_test)) == (2 * counts[0], 2 * counts[1])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"layout": "rotated"}, "layout=rotated turns images, but {file} has vectors; take another layout."),
        (
            {"size": "30+30"},
            '{file} has 20 examples of class "0" but layout=labels size=30+30 with 4 clients needs 120; '
            "take fewer clients or a smaller size.",
        ),
    ],
)
def test_layouts_that_do_not_fit(write: Write, settings, words: dict, sentence: str) -> None:
    file = write(x=VECTORS, y=LABELS)
    with pytest.raises(DataError) as caught:
        check(settings(dataset=file, **words), 4)
    assert str(caught.value) == sentence.format(file=file)


def test_a_class_without_examples_is_named(write: Write, settings) -> None:
    file = write(x=VECTORS, y=LABELS, classes=["cat", "dog", "cow", "yak"])
    for layout in ("labels", "mixed"):
        dataset = file if layout == "labels" else f"{file},{file}"
        with pytest.raises(DataError) as caught:
            check(settings(dataset=dataset, layout=layout), 4)
        assert f'{file} has 0 examples of class "yak" but layout={layout}' in str(caught.value)


def test_quarter_turns_need_square_images(write: Write, settings) -> None:
    with pytest.raises(DataError, match="takes square images, not 6×5"):
        check(settings(dataset=write(x=IMAGES, y=LABELS), layout="rotated", groups=4, size="1+1"), 4)
