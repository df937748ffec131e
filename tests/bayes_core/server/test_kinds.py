"""Kinds of client: planted moves away from a common start, each client with a part of its own, and real digits."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from bayes_core import Gaussian
from bayes_core.flat import flatten, shapes_of
from bayes_core.server import kinds
from bayes_core.server.clustering import choose_k, choose_k_with_evidence, clusters_asked_for
from bayes_core.server.moves import compare_learned, layers_of
from client_app.methods.cfedbayes import CFedBayes
from fedbayes.protocol.models import build
from fedbayes.protocol.settings import Settings, defaults

Planted = tuple[np.ndarray, np.ndarray, list[int]]


def moves(
    sizes: Sequence[int], seed: int, own: Sequence[float] = (1.0,), shared: float = 0.6, size: int = 2000
) -> Planted:
    """Ψ, Ψ to the start, groups: each client moves by what its kind moves by, and by a part of its own."""
    random = np.random.default_rng(seed)
    groups = [group for group, count in enumerate(sizes) for _ in range(count)]
    towards = random.normal(0, 1, (len(sizes), size))
    alone = random.normal(0, 1, (len(groups), size)) * np.resize(own, len(groups))[:, None]
    where = shared * towards[groups] + alone
    psi = ((where[:, None] - where) ** 2).sum(2) / 2
    return psi, (where**2).sum(1) / 2, groups


def test_in_common_is_the_cosine_of_the_moves() -> None:
    # Moves (3, 0), (3, 4) and (0, 4): cosines 9/15, 16/20 and 0.
    where = np.array([[3.0, 0.0], [3.0, 4.0], [0.0, 4.0]])
    psi = ((where[:, None] - where) ** 2).sum(2) / 2
    common = kinds.in_common(psi, (where**2).sum(1) / 2)
    np.testing.assert_allclose(common, [[0, 0.6, 0], [0.6, 0, 0.8], [0, 0.8, 0]], atol=1e-12)


@pytest.mark.parametrize("own", [(1.0,), (0.6, 0.8, 1.0, 1.4, 1.8)], ids=["alike", "unlike"])
@pytest.mark.parametrize("sizes", [[4], [10], [40], [3, 3], [5, 5], [3, 3, 3], [6, 3, 3], [4] * 4], ids=str)
def test_kinds_are_found_whatever_the_clients_own_parts_are(sizes: list[int], own: tuple[float, ...]) -> None:
    for seed in range(5):
        psi, start, groups = moves(sizes, seed, own)
        found = kinds.kinds(psi, start)
        assert found.labels == groups, f"seed {seed}"


@pytest.mark.parametrize("sizes", [[10], [20], [50], [5, 5], [4, 4, 4]], ids=str)
def test_own_parts_without_the_start(sizes: list[int]) -> None:
    """Ψ_ij = a_i + a_j + noise, and 160 more between kinds; the a_i differ by a factor of three."""
    for seed in range(10):
        random = np.random.default_rng(seed)
        groups = np.repeat(range(len(sizes)), sizes)
        a = 165 * (1 + 0.5 * random.uniform(-1, 1, len(groups)))
        noise = np.triu(random.normal(0, 8, (len(groups), len(groups))), 1)
        psi = a[:, None] + a + noise + noise.T + 160 * (groups[:, None] != groups)
        np.fill_diagonal(psi, 0)
        assert choose_k(torch.from_numpy(psi))[0] == len(sizes)


@pytest.mark.parametrize("size", [9, 19])
def test_a_client_like_no_other_is_named_and_found_when_two_are_asked_for(size: int) -> None:
    for seed in range(5):
        psi, start, groups = moves([1, size], seed)
        found = kinds.kinds(psi, start, [f"site {number}" for number in range(size + 1)])
        assert (found.k, found.sure, found.odd) == (1, False, [0])
        assert "site 0" in found.why and "site 1" not in found.why
        asked = clusters_asked_for(torch.from_numpy(psi), 2, seed, torch.from_numpy(start))
        assert asked == groups


def test_a_client_like_no_other_beside_two_kinds() -> None:
    for seed in range(5):
        psi, start, groups = moves([5, 5, 1], seed)
        found = kinds.kinds(psi, start)
        assert found.labels[:10] == groups[:10] and found.k == 2
        assert not found.sure and found.odd == [10]


def test_how_sure_it_is_of_what_is_clear() -> None:
    for sizes in ([10], [5, 5], [4, 4, 4]):
        found = kinds.kinds(*moves(sizes, 0)[:2])
        assert found.sure and found.odd == [] and found.uneven < 0.2
        assert ("no groups stand apart" if len(sizes) == 1 else "as those of one") in found.why
    assert found.common == pytest.approx(0, abs=0.1), "their kinds have nothing in common"


def test_clients_that_differ_by_degrees_are_no_kinds() -> None:
    """Each lies somewhere on a circle: neighbours have much in common, opposites the contrary."""
    random = np.random.default_rng(0)
    angle = random.uniform(0, 2 * np.pi, 12)
    basis = random.normal(0, 1, (2, 2000))
    where = np.stack([np.cos(angle), np.sin(angle)], 1) @ basis + random.normal(0, 1, (12, 2000))
    found = kinds.kinds(((where[:, None] - where) ** 2).sum(2) / 2, (where**2).sum(1) / 2)
    assert found.k == 1 and not found.sure and "varies by" in found.why


@pytest.mark.parametrize("size", [1, 2, 3])
def test_few_clients_are_one_cluster(size: int) -> None:
    psi, start, _ = moves([1] * size, 0)
    found = kinds.kinds(psi, start)
    assert found.labels == [0] * size and found.sure == (size == 1)


def test_clients_that_did_not_move_and_absurd_ones() -> None:
    still = kinds.kinds(np.zeros((5, 5)), np.zeros(5))
    assert still.k == 1
    psi, start, groups = moves([5, 5], 0)
    psi[3], psi[:, 3], start[3] = np.inf, np.inf, np.inf
    psi[3, 3] = 0
    found = kinds.kinds(psi, start)
    others = [label for client, label in enumerate(found.labels) if client != 3]
    assert others == groups[:3] + groups[4:] and 3 in found.odd


# ---------------------------------------------------------------------- real digits


def digits(
    groups: Sequence[int], sizes: Sequence[int], seed: int, border: int = 0, noisy: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ψ of what was learned in round 0, and to the start; the images of group 1 are upside down, of group 2 mirrored.

    With a border they are like MNIST's, in which most pixels are always the same. The first few have random labels.
    """
    data = load_digits()
    images, targets = (
        torch.tensor(data.images / 8 - 1, dtype=torch.float32)[:, None],
        torch.tensor(data.target),
    )
    random = torch.Generator().manual_seed(seed)
    settings = Settings.parse(defaults() | {"method": "cfedbayes", "seed": seed})
    network = build("dnn", (1, 8 + 2 * border, 8 + 2 * border), 10, seed)
    w = Gaussian().init(flatten(network), -2.5, 0.5)
    uploads = []
    for number, group in enumerate(groups):
        mine = torch.randperm(len(images), generator=random)[: sizes[number % len(sizes)]]
        x = [images[mine], images[mine].rot90(2, (2, 3)), images[mine].flip(3)][group]
        x = torch.nn.functional.pad(x, (border,) * 4, value=-1.0).contiguous()
        y = torch.randint(10, (len(mine),), generator=random) if number < noisy else targets[mine]
        method = CFedBayes(settings, network, x, y, str(number), torch.device("cpu"))
        uploads.append(method.train(method.start({"w": w}), {"w": w}, 0).uploads["w"])
    return compare_learned(uploads, w, Gaussian(), layers_of(shapes_of(network).values()))


UNEQUAL = [20, 150, 40, 250, 80, 400, 120, 30, 200, 60, 300, 100]


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [
        ([0] * 20, [100]),
        ([0] * 12, [20, 150, 40, 250, 80, 400]),
        ([0] * 4 + [1] * 4 + [2] * 4, UNEQUAL),
    ],
    ids=["one kind of 20", "one kind, 20 to 400 examples", "three kinds, 20 to 400 examples"],
)
def test_kinds_of_real_clients(groups: list[int], sizes: list[int]) -> None:
    for seed in (20, 21, 22):
        psi, start = digits(groups, sizes, seed)
        choice = choose_k_with_evidence(psi, start)
        assert choice.k == max(groups) + 1, f"seed {seed}"
        assert adjusted_rand_score(groups, choice.kinds.labels) == 1 or not choice.kinds.sure, f"seed {seed}"


def test_a_real_client_like_no_other() -> None:
    groups = [1] + [0] * 9
    for seed in (20, 21):
        psi, start = digits(groups, [100], seed)
        found = choose_k_with_evidence(psi, start).kinds
        assert found.k == 1 and not found.sure and 0 in found.odd
        assert clusters_asked_for(psi, 2, seed, start) == [0] + [1] * 9


@pytest.mark.parametrize("groups", [[0] * 6 + [1] * 6, [0] * 4 + [1] * 4 + [2] * 4], ids=["6+6", "4+4+4"])
def test_kinds_of_real_clients_with_a_border_around_their_images(groups: list[int]) -> None:
    for seed in (20, 21):
        assert choose_k_with_evidence(*digits(groups, UNEQUAL, seed, border=4)).kinds.labels == groups


@pytest.mark.parametrize("border", [2, 6])
def test_real_clients_with_random_labels_are_no_kind(border: int) -> None:
    for seed in (20, 22):
        found = choose_k_with_evidence(*digits([0] * 10, [200], seed, border, noisy=3)).kinds
        assert found.k == 1 and not found.sure and {0, 1, 2} <= set(found.odd), f"seed {seed}"
