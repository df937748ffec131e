"""`load` and `check`: what a client app sees."""

import hashlib

import numpy as np
import pytest
import torch

import client_app.data as data
from client_app.data import ClientData, DataError, check, load
from client_app.data.sources import read_pool


def digest(client: ClientData) -> str:
    parts = (client.x_train, client.y_train, client.x_test, client.y_test)
    return hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


def pictures(x: torch.Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in x]


def test_a_client_s_tensors(settings) -> None:
    client = load(settings(), 3, 10)
    assert (client.x_train.shape, client.x_test.shape) == ((25, 1, 8, 8), (125, 1, 8, 8))
    assert (client.x_train.dtype, client.y_train.dtype) == (torch.float32, torch.int64)
    assert (len(client.y_train), len(client.y_test)) == (25, 125)
    assert client.x_train.is_contiguous()
    assert client.classes == tuple("0123456789")
    assert client.group is None
    # Every image still has its own label.
    pool = read_pool(("digits",), "data")
    label_of = dict(zip(pictures(pool.scaled(np.arange(1797))), pool.labels[0].tolist(), strict=True))
    assert [label_of[image] for image in pictures(client.x_train)] == client.y_train.tolist()
    assert [label_of[image] for image in pictures(client.x_test)] == client.y_test.tolist()


def test_the_second_load_is_a_look_up_and_the_cache_is_bounded(settings, monkeypatch) -> None:
    first = load(settings(), 0, 10)
    assert load(settings(rounds=7), 0, 10) is first, "settings that do not touch data share the entry"
    monkeypatch.setattr(data, "CACHE_BYTES", 3 * 150 * 64 * 4)  # three clients of 150 images of 8×8 floats
    for partition in range(1, 10):
        load(settings(), partition, 10)
    assert sorted(partition for *_, partition in data._clients) == [7, 8, 9]
    again = load(settings(), 0, 10)
    assert again is not first
    assert digest(again) == digest(first)


@pytest.mark.parametrize(("layout", "classes"), [("labels", 5), ("iid", 5), ("rotated", 10)])
@pytest.mark.parametrize(("size", "train", "test"), [("small", 5, 25), ("medium", 10, 20), ("large", 24, 10)])
def test_ten_clients_fit_the_digits(
    settings, layout: str, classes: int, size: str, train: int, test: int
) -> None:
    """So many examples of a class; a client has five classes, as many examples of any, or all ten turned."""
    chosen = settings(layout=layout, size=size)
    clients = [load(chosen, number, 10) for number in range(10)]
    assert digest(check(chosen, 10)) == digest(clients[0]), "the digits need no agreement"
    for one in clients:
        assert (len(one.y_train), len(one.y_test)) == (classes * train, classes * test)
        assert not set(pictures(one.x_train)) & set(pictures(one.x_test))
        if layout != "iid":
            assert sorted(one.y_train.bincount(minlength=10)) == [0] * (10 - classes) + [train] * classes


def test_another_seed_is_another_split(settings) -> None:
    assert digest(load(settings(seed=1), 0, 10)) != digest(load(settings(seed=2), 0, 10))


@pytest.mark.parametrize("groups", [2, 4])
def test_rotation_pixel_by_pixel(settings, groups: int) -> None:
    chosen = settings(layout="rotated", groups=groups, size="5+5")
    pool, shares = data._shares(data.Split.of(chosen), 8)
    for partition, share in enumerate(shares):
        client = load(chosen, partition, 8)
        assert client.group == partition * groups // 8
        upright = pool.inputs[torch.from_numpy(share.train)]
        turned = torch.rot90(upright, client.group * 4 // groups, (2, 3))
        assert torch.equal(client.x_train, turned / 8 - 1)
        assert client.y_train.tolist() == pool.labels[0][share.train].tolist()
    first = pool.scaled(shares[-1].test)
    if groups == 2:  # by 180°: the last pixel comes first
        assert torch.equal(load(chosen, 7, 8).x_test.flatten(1), first.flatten(1).flip(1))


def test_mixed_holds_both_data_sets(settings, tmp_path, write_set) -> None:
    mnist, _ = write_set("MNIST")
    fashion, _ = write_set("FashionMNIST")
    belongs = {image.tobytes(): 0 for image in mnist} | {image.tobytes(): 1 for image in fashion}
    chosen = settings(dataset="fmnist", layout="mixed", size="10+10", data_dir=str(tmp_path))
    for partition, group in enumerate([0, 0, 1, 1]):
        client = load(chosen, partition, 4)
        assert (client.group, client.classes) == (group, tuple("0123456789"))
        assert np.bincount(client.y_train).tolist() == [10] * 10
        images = ((client.x_train[:, 0] + 1) * 127.5).round().to(torch.uint8).numpy()
        origin = [belongs[image.tobytes()] for image in images]
        assert origin.count(group) == 90
        assert origin.count(1 - group) == 10
        assert origin != sorted(origin)


@pytest.mark.parametrize(
    ("values", "partitions", "sentence"),
    [
        (
            {"size": "10+10"},
            20,
            'digits has 174 images of class "8" but layout=labels size=10+10 with 20 clients needs 200; '
            "take fewer clients or a smaller size.",
        ),
        (
            {"layout": "iid", "size": "10+10"},
            20,
            "digits has 1797 images but layout=iid size=10+10 with 20 clients needs 2000; "
            "take fewer clients or a smaller size.",
        ),
        (
            {"size": f"{9 * 10**18}+{9 * 10**18}"},  # twice this is beyond 64 bits
            2,
            f'digits has 174 images of class "8" but layout=labels size={9 * 10**18}+{9 * 10**18} '
            f"with 2 clients needs {18 * 10**18}; take fewer clients or a smaller size.",
        ),
        (
            {"dataset": "cifar"},
            2,
            'There is no data set "cifar"; dataset takes digits, diabetes, mnist, fmnist, cifar10, svhn, functions, '
            "the path of an .npz file or of a folder of sites, or package.module:function.",
        ),
        ({}, 0, "A federation takes at least 1 client, not 0."),
        (
            {"layout": "rotated", "groups": 3},
            9,
            "layout=rotated takes 2 or 4 groups (turns of 180° or 90°), not groups=3.",
        ),
        (
            {"layout": "rotated", "groups": 4},
            3,
            "layout=rotated has 4 groups and takes at least as many clients, not 3.",
        ),
        (
            {"layout": "mixed", "dataset": "mnist"},
            1,
            "layout=mixed has 2 groups and takes at least as many clients, not 1.",
        ),
        (
            {"layout": "mixed"},
            2,
            "layout=mixed takes mnist, fmnist, cifar10, svhn, or two data sets with a comma between such as "
            "a.npz,b.npz, not dataset=digits.",
        ),
    ],
)
def test_the_impossible_is_one_sentence(settings, values, partitions: int, sentence: str) -> None:
    with pytest.raises(DataError) as checked:
        check(settings(**values), partitions)
    with pytest.raises(DataError) as loaded:
        load(settings(**values), 0, partitions)
    assert str(checked.value) == str(loaded.value) == sentence


def test_a_client_beyond_the_last_is_refused(settings) -> None:
    with pytest.raises(DataError, match="There is no client 10 among 10"):
        load(settings(), 10, 10)
