"""Symmetric KL against the double loop, spectral clustering and the choice of K on planted groups."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from bayes_core.families import Family, Gaussian, Point, SpikeSlab
from bayes_core.server import clustering
from bayes_core.server.clustering import (
    affinity,
    choose_k,
    choose_k_with_evidence,
    laplacian_eigenvalues,
    spectral_clusters,
    symmetric_kl_matrix,
)

FAMILIES = {"gaussian": Gaussian(), "spike-slab": SpikeSlab()}


def uploads(family: Family, count: int = 6, size: int = 50, seed: int = 0) -> Tensor:
    """(N, rows, T) in float64: means 0.05 apart at σ ≈ 0.08, and λ anywhere."""
    random = torch.Generator().manual_seed(seed)
    stack = torch.randn(count, len(family.rows), size, generator=random, dtype=torch.float64)
    stack[:, 0] *= 0.05
    stack[:, 1] = -2.5 + 0.2 * stack[:, 1]
    if family.gated:
        stack[:, 2] = torch.sigmoid(2 * stack[:, 2])
    return stack


def double_loop(stack: Tensor, family: Family) -> Tensor:
    kl = torch.tensor([[float(family.kl(a, b)) for b in stack] for a in stack], dtype=torch.float64)
    return (kl + kl.T) / 2


def planted(
    sizes: Sequence[int], seed: int, noise: float = 8.0, within: float = 330.0, between: float = 490.0
) -> tuple[Tensor, list[int]]:
    """Ψ as measured on MNIST and MNIST rotated after 20 steps, for groups of these sizes."""
    labels = np.repeat(range(len(sizes)), sizes)
    table = np.full((len(sizes), len(sizes)), between)
    np.fill_diagonal(table, within)
    return planted_from(table, labels, seed, noise), labels.tolist()


def planted_from(table: np.ndarray, labels: np.ndarray, seed: int, noise: float = 8.0) -> Tensor:
    """Ψ between clients whose groups are as far apart as `table` says."""
    random = np.random.default_rng(seed)
    upper = np.triu(random.normal(0, noise, (len(labels), len(labels))), 1)
    psi = table[np.ix_(labels, labels)] + upper + upper.T
    np.fill_diagonal(psi, 0)
    return torch.from_numpy(psi)


def chosen(sizes: Sequence[int], seeds: int = 100, **kind: float) -> list[int]:
    return [choose_k(planted(sizes, seed, **kind)[0])[0] for seed in range(seeds)]


# ---------------------------------------------------------------------- Ψ


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_symmetric_kl_is_the_double_loop(name: str, dtype: torch.dtype) -> None:
    family = FAMILIES[name]
    stack = uploads(family).to(dtype)
    before = stack.clone()
    psi = symmetric_kl_matrix(stack, family)
    assert psi.dtype == torch.float64 and psi.shape == (6, 6)
    torch.testing.assert_close(psi, double_loop(stack, family), rtol=1e-9, atol=0)
    assert torch.equal(psi, psi.T) and not psi.diagonal().any()
    assert torch.equal(stack, before)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mean", [1e3, 1e4])
def test_large_and_nearly_equal_means_lose_no_digits(name: str, mean: float) -> None:
    family = FAMILIES[name]
    stack = uploads(family)
    stack[:, 0] = mean + 1e-3 * torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    stack[:, 1:] = stack[0, 1:]  # the means are all that differs: Ψ is about 0.004
    psi = symmetric_kl_matrix(stack, family)
    off = ~torch.eye(6, dtype=torch.bool)
    assert psi[off].min() > 0.001 and psi[off].max() < 0.02
    torch.testing.assert_close(psi, double_loop(stack, family), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("block", [7, 25, 50])
def test_blocks_add_up(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[name]
    stack = uploads(family)
    monkeypatch.setattr(clustering, "BLOCK", block)
    torch.testing.assert_close(
        symmetric_kl_matrix(stack, family), double_loop(stack, family), rtol=1e-9, atol=0
    )


def test_symmetric_kl_by_hand() -> None:
    # σ = 1 and 2, means 3 apart: ½[(ln 2 + 10/8 − ½) + (−ln 2 + 13/2 − ½)] = 3.375
    rho_1, rho_2 = math.log(math.expm1(1)), math.log(math.expm1(2))
    stack = torch.tensor([[[3.0], [rho_1]], [[0.0], [rho_2]]], dtype=torch.float64)
    assert symmetric_kl_matrix(stack, Gaussian())[0, 1].item() == pytest.approx(3.375, rel=1e-9)


def test_a_spike_and_slab_that_is_always_on_is_a_gaussian() -> None:
    stack = uploads(Gaussian())
    always = torch.cat([stack, torch.ones(6, 1, 50)], dim=1)
    expected = symmetric_kl_matrix(stack, Gaussian())
    for family in (SpikeSlab(), SpikeSlab(gated=False)):
        torch.testing.assert_close(symmetric_kl_matrix(always, family), expected, rtol=1e-6, atol=0)


def test_sure_gates_that_disagree_are_far_apart_and_finite() -> None:
    stack = uploads(SpikeSlab(), count=3)
    stack[0, 2], stack[1, 2], stack[2, 2] = 1.0, 0.0, 1.0
    psi = symmetric_kl_matrix(stack, SpikeSlab())
    assert psi.isfinite().all() and psi[0, 1] > 10 * psi[0, 2]


def test_affinity_is_the_reciprocal_with_a_zero_diagonal() -> None:
    psi = torch.tensor([[0.0, 4.0, 0.0], [4.0, 0.0, 0.5], [0.0, 0.5, 0.0]])
    assert affinity(psi).tolist() == [
        pytest.approx(row)
        for row in ([0, 1 / 4.000001, 1e6], [1 / 4.000001, 0, 1 / 0.500001], [1e6, 1 / 0.500001, 0])
    ]
    assert psi[0, 1] == 4


# ---------------------------------------------------------------------- clusters


SIZES = [[5, 5], [3, 3, 3, 3], [5] * 4, [10, 10], [7, 7, 6], [2, 8], [2, 2], [1, 9], [2] * 5, [10] * 5]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_planted_groups_are_recovered(sizes: list[int]) -> None:
    for seed in range(2):
        psi, labels = planted(sizes, seed)
        order = np.random.default_rng(seed).permutation(len(labels))
        shuffled = [labels[i] for i in order]
        found = spectral_clusters(psi[order][:, order], len(sizes), seed)
        assert adjusted_rand_score(shuffled, found) == 1.0
        firsts = [found.index(cluster) for cluster in range(len(sizes))]
        assert firsts == sorted(firsts), "numbered in the order in which they first occur"


def test_groups_of_real_distributions_are_recovered() -> None:
    for family in FAMILIES.values():
        stack = uploads(family, count=8, size=1600)
        stack[4:, 0, :800] += 0.05  # one standard deviation of the other differences, in half of the weights
        psi = symmetric_kl_matrix(stack.float(), family)
        assert choose_k(psi)[0] == 2
        assert spectral_clusters(psi, 2) == [0] * 4 + [1] * 4


def test_one_seed_is_one_clustering() -> None:
    psi, _ = planted([10], 0)  # no groups: where the cut falls is a matter of chance
    assert spectral_clusters(psi, 3, seed=5) == spectral_clusters(psi, 3, seed=5)
    torch.manual_seed(1)
    np.random.seed(1)
    assert spectral_clusters(psi, 3, seed=5) == spectral_clusters(psi, 3, seed=5)
    assert len(set(spectral_clusters(psi, 3, seed=2**40 + 5))) == 3, "seeds of 63 bits are taken too"


def test_one_cluster_and_as_many_as_clients() -> None:
    psi, _ = planted([3, 3], 0)
    assert spectral_clusters(psi, 1) == [0] * 6
    for k in (6, 7, 100):
        assert spectral_clusters(psi, k) == [0, 1, 2, 3, 4, 5]
    assert spectral_clusters(torch.zeros(1, 1), 1) == [0]
    assert sorted(set(spectral_clusters(psi, 5))) == [0, 1, 2, 3, 4], "more than there are groups"


# ---------------------------------------------------------------------- how many


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_k_of_planted_groups(sizes: list[int]) -> None:
    """Without the start a client that is like no other cannot be told from a noisy one."""
    right = chosen(sizes).count(1 if sizes == [1, 9] else len(sizes))
    assert right >= 98, f"{right} of 100"


@pytest.mark.parametrize("size", [10, 20, 50])
def test_one_group_is_one_cluster(size: int) -> None:
    ones = chosen([size], seeds=50).count(1)
    assert ones >= 48, f"{ones} of 50"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 10, 50])
def test_identical_clients_are_one_cluster(size: int) -> None:
    k, eigenvalues = choose_k(torch.zeros(size, size, dtype=torch.float64))
    assert k == 1 and len(eigenvalues) == size


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fewer_than_four_clients_are_one_cluster(size: int) -> None:
    psi = planted([1] * size, 0, between=9000)[0]
    choice = choose_k_with_evidence(psi)
    assert (choice.k, choice.gap, choice.rest) == (1, 0.0, 0.0)
    assert len(choice.eigenvalues) == size and choice.eigenvalues[0] == pytest.approx(0, abs=1e-9)


def test_the_evidence_is_that_of_the_laplacian() -> None:
    # Two groups of two: within Ψ = 1, between 4. Degrees are all 1 + ¼ + ¼ = 1.5, so the eigenvalues of
    # I − Φ/1.5 are 1 − (1.5, 0.5, −1, −1)/1.5, with the eigenvectors ++++, ++−− and two +−'s.
    psi = torch.tensor([[0.0, 1, 4, 4], [1, 0, 4, 4], [4, 4, 0, 1], [4, 4, 1, 0]])
    choice = choose_k_with_evidence(psi)
    assert choice.eigenvalues == pytest.approx([0, 2 / 3, 5 / 3, 5 / 3], abs=1e-5)
    assert choice.k == 2
    assert choice.gap == pytest.approx(1, abs=1e-5) and choice.rest == pytest.approx(0, abs=1e-5)
    assert choose_k(psi) == (2, choice.eigenvalues)
    assert laplacian_eigenvalues(psi).tolist() == choice.eigenvalues


def test_the_evidence_of_one_cluster_is_the_gap_that_did_not_stand_out() -> None:
    choice = choose_k_with_evidence(planted([12], 1)[0])
    gaps = np.diff(choice.eigenvalues)
    assert choice.k == 1
    assert choice.gap == pytest.approx(gaps[1:6].max()), "the first gap says nothing, nor those above N/2"
    others = np.delete(gaps, [0, 1 + int(gaps[1:6].argmax())])
    assert choice.rest == pytest.approx(np.median(others))


# ---------------------------------------------------------------------- where the choice of K ends


def test_groups_within_groups_are_seen_at_the_finer_level() -> None:
    """Four groups of four, 490 apart; two and two of them are siblings."""
    labels = np.repeat(range(4), 4)
    found = {}
    for siblings in (380.0, 460.0):
        table = np.full((4, 4), 490.0)
        table[:2, :2] = table[2:, 2:] = siblings
        np.fill_diagonal(table, 330.0)
        found[siblings] = {choose_k(planted_from(table, labels, seed))[0] for seed in range(20)}
    assert found == {380.0: {4}, 460.0: {4}}


def test_one_far_group_does_not_hide_what_is_nearer() -> None:
    """Three groups of five: A and B 430 apart, C at 490 or at 800 from both."""
    labels = np.repeat(range(3), 5)
    found = {}
    for far in (490.0, 800.0):
        table = np.array([[330, 430, far], [430, 330, far], [far, far, 330]])
        found[far] = {choose_k(planted_from(table, labels, seed))[0] for seed in range(20)}
    assert found == {490.0: {3}, 800.0: {3}}


def test_limit_no_more_than_half_as_many_clusters_as_clients() -> None:
    """Three loners and a group of five are four kinds of client, and ten loners ten."""
    assert set(chosen([1, 1, 1, 5], seeds=20)) == {2}
    assert max(chosen([1] * 10, seeds=20)) <= 5


def test_points_are_as_far_apart_as_half_their_squared_distance() -> None:
    stack = torch.tensor([[[3.0, 0.0]], [[0.0, 4.0]], [[3.0, 1.0]]])
    expected = torch.tensor([[0.0, 12.5, 0.5], [12.5, 0.0, 9.0], [0.5, 9.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(symmetric_kl_matrix(stack, Point()), expected)
