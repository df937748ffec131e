"""The validation split and random labels."""

import pytest
import torch

from client_app.data import DataError
from client_app.prepare import hold_out, random_labels
from fedbayes.protocol.streams import stream


def test_a_share_is_held_out_and_nothing_is_lost_or_seen_twice() -> None:
    x, y = torch.arange(50.0)[:, None], torch.arange(50)
    kept, held = hold_out(x, y, 0.2, stream(1, "site"))
    assert held and len(kept[1]) == 40 and len(held[1]) == 10
    assert sorted(torch.cat([kept[1], held[1]]).tolist()) == list(range(50))
    for part in (kept, held):
        assert torch.equal(part[0][:, 0].long(), part[1]), "examples keep their labels"
    again, other = hold_out(x, y, 0.2, stream(1, "site"))[1], hold_out(x, y, 0.2, stream(2, "site"))[1]
    assert again and other and torch.equal(held[1], again[1]) and not torch.equal(held[1], other[1])


def test_without_a_fraction_the_data_stay_as_they_are() -> None:
    x, y = torch.randn(5, 2), torch.arange(5)
    kept, held = hold_out(x, y, 0.0, stream(1))
    assert kept[0] is x and kept[1] is y and held is None


@pytest.mark.parametrize(("n", "fraction", "expected"), [(2, 0.01, 1), (2, 0.99, 1), (10, 0.99, 9)])
def test_at_least_one_example_is_left_on_either_side(n: int, fraction: float, expected: int) -> None:
    held = hold_out(torch.zeros(n, 1), torch.zeros(n), fraction, stream(1))[1]
    assert held and len(held[1]) == expected


def test_one_example_cannot_be_divided() -> None:
    with pytest.raises(
        DataError, match=r"validation-fraction=0\.2 takes at least 2 training examples, not 1"
    ):
        hold_out(torch.zeros(1, 1), torch.zeros(1), 0.2, stream(1))


def test_random_labels_know_nothing_of_the_true_ones() -> None:
    y = torch.zeros(6000, dtype=torch.int64)
    got = random_labels(y, 6, stream(1))
    counts = torch.bincount(got, minlength=6)
    assert got.dtype == torch.int64 and counts.sum() == 6000
    assert (abs(counts - 1000) < 150).all(), "5 standard deviations of a fair die"
