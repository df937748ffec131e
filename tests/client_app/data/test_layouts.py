"""Who holds what: counts, disjointness and determinism, on label lists alone."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from client_app.data import layouts
from client_app.data.layouts import NotEnough, Share

Y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))  # 100 images of each class
COUNTS = (3, 5)
NUMBERS_OF_CLIENTS = (1, 2, 3, 5, 10, 11, 20)


def everything(shares: list[Share]) -> np.ndarray:
    return np.concatenate([part for share in shares for part in (share.train, share.test)])


def per_class(indices: np.ndarray, y: np.ndarray = Y) -> list[int]:
    return np.bincount(y[indices], minlength=10).tolist()


def digest(shares: list[Share]) -> str:
    return hashlib.sha256(everything(shares).astype("<i8").tobytes()).hexdigest()


@pytest.mark.parametrize("clients", NUMBERS_OF_CLIENTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_labels(clients: int, seed: int) -> None:
    shares = layouts.by_labels(Y, 10, COUNTS, clients, seed)
    assert len(shares) == clients
    holders = np.zeros(10, dtype=int)
    for share in shares:
        held = np.unique(Y[share.train])
        assert len(held) == 5
        assert per_class(share.train) == [3 * (label in held) for label in range(10)]
        assert per_class(share.test) == [5 * (label in held) for label in range(10)]
        holders[held] += 1
    assert set(holders) <= {clients // 2, (clients + 1) // 2}
    assert len(np.unique(everything(shares))) == clients * 5 * 8


def test_labels_with_an_odd_number_of_classes() -> None:
    y = Y[Y < 7]
    held = [len(np.unique(y[share.train])) for share in layouts.by_labels(y, 7, COUNTS, 5, 1)]
    assert set(held) == {3, 4}
    holders = np.sum(
        [
            np.bincount(np.unique(y[share.train]), minlength=7)
            for share in layouts.by_labels(y, 7, COUNTS, 5, 1)
        ],
        axis=0,
    )
    assert set(holders) <= {2, 3}


@pytest.mark.parametrize("clients", NUMBERS_OF_CLIENTS)
def test_iid_has_the_sizes_of_labels_and_any_class(clients: int) -> None:
    shares = layouts.iid(Y, 10, COUNTS, clients, 1)
    assert [(len(share.train), len(share.test)) for share in shares] == [(15, 25)] * clients
    assert len(np.unique(everything(shares))) == clients * 40
    assert all(len(np.unique(Y[np.append(share.train, share.test)])) > 5 for share in shares)


@pytest.mark.parametrize(("clients", "groups"), [(2, 2), (3, 2), (10, 2), (11, 4), (4, 4)])
def test_rotated_groups(clients: int, groups: int) -> None:
    shares = layouts.rotated(Y, 10, COUNTS, clients, groups, 1)
    owners = [share.group for share in shares]
    assert owners == sorted(owners), "groups are contiguous"
    sizes = np.bincount(owners)
    assert len(sizes) == groups
    assert set(sizes.tolist()) <= {clients // groups, -(-clients // groups)}
    for share in shares:
        assert share.quarter_turns * 90 == share.group * 360 // groups
        assert (per_class(share.train), per_class(share.test)) == ([3] * 10, [5] * 10)
    for group, size in enumerate(sizes):
        indices = everything([share for share in shares if share.group == group])
        assert len(np.unique(indices)) == size * 80


def test_each_rotated_group_draws_from_the_whole_pool() -> None:
    shares = layouts.rotated(Y, 10, (40, 60), 2, 2, 1)  # each client takes every image there is
    assert all(len(np.unique(everything([share]))) == len(Y) for share in shares)
    assert set(shares[0].train) != set(shares[1].train), "each group has a shuffle of its own"


@pytest.mark.parametrize("clients", [2, 3, 10])
def test_mixed_is_ninety_to_ten(clients: int) -> None:
    first, second = Y, np.tile(np.arange(10), 90)
    both = np.concatenate([first, second])
    shares = layouts.mixed((first, second), 10, (10, 8), clients, 1)
    assert [share.group for share in shares] == sorted([0] * (-(-clients // 2)) + [1] * (clients // 2))
    for share in shares:
        for indices, major, minor in ((share.train, 9, 1), (share.test, 7, 1)):
            ours = indices < len(first) if share.group == 0 else indices >= len(first)
            assert per_class(indices[ours], both) == [major] * 10
            assert per_class(indices[~ours], both) == [minor] * 10
    for group in (0, 1):
        members = [share for share in shares if share.group == group]
        assert len(np.unique(everything(members))) == len(members) * 180


def test_the_paper_s_counts_of_mixed() -> None:
    ys = (np.repeat(np.arange(10), 1000), np.repeat(np.arange(10), 1000))
    share = layouts.mixed(ys, 10, (50, 950), 2, 1)[0]
    assert ((share.train < 10_000).sum(), (share.train >= 10_000).sum()) == (450, 50)
    assert ((share.test < 10_000).sum(), (share.test >= 10_000).sum()) == (8550, 950)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 100.0])
def test_dirichlet_has_the_sizes_of_iid_and_one_mixture_for_training_and_test(alpha: float) -> None:
    shares = layouts.dirichlet(Y, 10, (4, 12), 6, alpha, 1)
    assert [(len(share.train), len(share.test)) for share in shares] == [(20, 60)] * 6
    assert len(np.unique(everything(shares))) == 6 * 80
    for share in shares:  # three test examples for each one to train on, to within rounding
        difference = np.array(per_class(share.test)) - 3 * np.array(per_class(share.train))
        assert np.abs(difference).max() <= 3


def test_dirichlet_follows_the_mixtures_that_it_draws() -> None:
    y = np.repeat(np.arange(3), 10_000)
    many = layouts.dirichlet(y, 3, (50, 50), 200, 2.0, 1)
    mixtures = np.array([np.bincount(y[share.train], minlength=3) / 50 for share in many])
    # Dirichlet(α, α, α): mean 1/3, variance 2/9 / (3α + 1) = 0.0317; 200 draws
    assert mixtures.mean(0) == pytest.approx([1 / 3] * 3, abs=0.05)
    assert mixtures.var(0) == pytest.approx([2 / 9 / 7] * 3, abs=0.01)


def test_dirichlet_deals_everything_there_is() -> None:
    shares = layouts.dirichlet(Y, 10, (5, 15), 10, 0.2, 1)  # 10 · 5 · 20 = all 1000
    assert sorted(everything(shares).tolist()) == list(range(1000))
    with pytest.raises(NotEnough) as caught:
        layouts.dirichlet(Y, 10, (5, 15), 11, 0.2, 1)
    assert (caught.value.have, caught.value.need, caught.value.label) == (1000, 1100, None)


def test_a_small_alpha_gives_few_classes() -> None:
    y = np.repeat(np.arange(10), 2000)

    def held(alpha: float) -> float:
        shares = layouts.dirichlet(y, 10, (10, 30), 20, alpha, 1)
        return float(np.mean([np.max(np.bincount(y[share.train], minlength=10)) / 50 for share in shares]))

    assert held(0.05) > 0.7 > 0.3 > held(100.0)


SPLITS = {
    "labels": lambda seed: layouts.by_labels(Y, 10, COUNTS, 5, seed),
    "iid": lambda seed: layouts.iid(Y, 10, COUNTS, 5, seed),
    "dirichlet": lambda seed: layouts.dirichlet(Y, 10, COUNTS, 5, 0.5, seed),
    "rotated": lambda seed: layouts.rotated(Y, 10, COUNTS, 5, 2, seed),
    "mixed": lambda seed: layouts.mixed((Y, Y), 10, COUNTS, 5, seed),
}


@pytest.mark.parametrize("name", SPLITS)
def test_the_seed_decides(name: str) -> None:
    make = SPLITS[name]
    assert digest(make(1)) == digest(make(1))
    assert digest(make(1)) != digest(make(2))
    order = [Y[share.train % len(Y)].tolist() for share in make(1)]
    assert all(labels != sorted(labels) for labels in order), "training examples are not sorted by class"


def test_another_process_makes_the_same_split() -> None:
    y = np.tile(np.arange(10), 30)
    code = (
        "import numpy as np; from client_app.data import layouts\n"
        "y = np.tile(np.arange(10), 30)\n"
        "print([(s.train.tolist(), s.test.tolist()) for s in layouts.by_labels(y, 10, (3, 5), 5, 1)])"
    )
    # Another hash seed: nothing may hang on the order of sets or on Python's hash().
    environment = {"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = [(share.train.tolist(), share.test.tolist()) for share in layouts.by_labels(y, 10, (3, 5), 5, 1)]
    assert run.stdout == f"{here}\n"


def test_what_is_available_to_each_client() -> None:
    y = np.repeat([0, 1, 2, 3], [100, 60, 80, 70])
    assert layouts.available(y, 4, "labels", 5, 2) == 60 // 3
    assert layouts.available(y, 4, "rotated", 5, 2) == 60 // 3
    assert layouts.available(y, 4, "iid", 5, 2) == 310 // (5 * 2)
    assert layouts.available(y, 5, "labels", 5, 2) == 0, "a class without examples"
    assert layouts.available(np.linspace(0, 1, 90), 0, "iid", 3, 2) == 30, "targets that are numbers"


def test_too_few_images_names_the_scarcest_class() -> None:
    y = np.concatenate([Y, np.full(20, 3)])[15:]  # class 3 has more than the others
    scarcest = int(np.argmin(np.bincount(y)))
    with pytest.raises(NotEnough) as caught:
        layouts.by_labels(y, 10, (10, 10), 12, 1)
    assert (caught.value.have, caught.value.need, caught.value.label) == (np.bincount(y).min(), 120, scarcest)
    with pytest.raises(NotEnough) as caught:
        layouts.iid(Y, 10, (10, 10), 11, 1)
    assert (caught.value.have, caught.value.need, caught.value.label) == (1000, 1100, None)
    with pytest.raises(NotEnough) as caught:
        layouts.mixed((Y, Y[:0]), 10, (10, 10), 2, 1)
    assert (caught.value.have, caught.value.need, caught.value.source) == (0, 2, 1)


@pytest.mark.parametrize(
    ("dataset", "size", "counts"),
    [
        ("mnist", "small", (50, 950)),
        ("fmnist", "medium", (200, 800)),
        ("mnist", "large", (900, 300)),
        ("digits", "7+8", (7, 8)),
        ("cifar10", "small", (25, 475)),
        ("cifar10", "medium", (100, 400)),
        ("svhn", "large", (450, 150)),
        ("own.npz", "small", (2, 38)),  # of 40 for each client and class
        ("own.npz", "large", (30, 10)),
        ("own.npz", "7+8", (7, 8)),
    ],
)
def test_sizes(dataset: str, size: str, counts: tuple[int, int]) -> None:
    assert layouts.counts_of(dataset, size, available=40) == counts
