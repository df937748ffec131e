"""Robust sums by hand, in any order, and what a liar can do to each of them."""

import itertools

import pytest
import torch

from bayes_core.server.aggregate import mean
from bayes_core.server.blocks import BLOCK
from bayes_core.server.robust import BY_NAME, Held, Krum, Median, TrimmedMean, hostile_among


def result(rule: type[Held], uploads: list[torch.Tensor], share: float = 0.2) -> torch.Tensor:
    total = rule(uploads[0], share)
    for number, upload in enumerate(uploads):
        total.add(upload, 10.0**number)  # what an upload says that it counts is not heard
    return total.result()


def rows(*values: float) -> list[torch.Tensor]:
    return [torch.tensor([[value, 2 * value], [-value, 0.0]]) for value in values]


def test_how_many_may_be_hostile() -> None:
    assert [hostile_among(number, 0.2) for number in (0, 1, 2, 3, 4, 5, 6, 10, 11)] == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
        3,
    ]
    assert [hostile_among(10, share) for share in (0.0, 0.1, 0.3, 0.49)] == [0, 1, 3, 4]


def test_by_hand() -> None:
    five = rows(1.0, 2.0, 3.0, 5.0, 1000.0)
    assert result(TrimmedMean, five)[0].tolist() == pytest.approx([10 / 3, 20 / 3])
    assert result(Median, five)[0].tolist() == [3.0, 6.0]
    assert result(Median, five[:4])[0].tolist() == [2.5, 5.0]
    assert result(Krum, five)[0].tolist() == [2.75, 5.5], "the mean of all but the one far away"
    assert result(TrimmedMean, five, 0.0).tolist() == mean(five).tolist() == result(Krum, five, 0.0).tolist()


def test_krum_weighs_rows_alike() -> None:
    """A lie in λ, whose distances are small beside those of μ, is seen, too."""
    torch.manual_seed(0)
    honest = [torch.stack([10 * torch.randn(50), torch.rand(50) / 100 + 0.5]) for _ in range(6)]
    liar = torch.stack([10 * torch.randn(50), torch.zeros(50)])
    kept = Krum(liar, 0.15)
    for upload in (*honest, liar):
        kept.add(upload)
    assert not any(torch.equal(upload, liar) for upload in kept.trusted())


@pytest.mark.parametrize("rule", BY_NAME.values())
def test_the_order_leaves_no_trace(rule: type[Held]) -> None:
    torch.manual_seed(0)
    uploads = [torch.randn(2, 40) for _ in range(5)]
    results = [result(rule, list(order)) for order in itertools.permutations(uploads)]
    assert all(torch.equal(one, results[0]) for one in results)


@pytest.mark.parametrize("rule", BY_NAME.values())
@pytest.mark.parametrize("lie", [-1e30, 0.0, 1e30])
def test_one_of_five_cannot_leave_the_honest_range(rule: type[Held], lie: float) -> None:
    torch.manual_seed(1)
    honest = [torch.randn(2, BLOCK + 7) for _ in range(4)]
    found = result(rule, [*honest, torch.full_like(honest[0], lie)])
    stack = torch.stack(honest)
    assert bool((found <= stack.amax(0)).all() and (found >= stack.amin(0)).all()) or lie == 0.0
    assert float(found.abs().max()) <= float(stack.abs().max())


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 2\) instead of \(2, 2\)"):
        Median(torch.zeros(2, 2)).add(torch.zeros(1, 2))
