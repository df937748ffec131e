"""Metrics on an example computed by hand, and ECE against a loop."""

import math

import pytest
import torch

from bayes_core.predict.metrics import add, summarise, tally

P = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.2, 0.2, 0.6]])
Y = torch.tensor([0, 2, 0, 2])


def random_predictions(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    p = (3 * torch.randn(n, 4, generator=random, dtype=torch.float64)).softmax(-1)
    return p, torch.randint(0, 4, (n,), generator=random)


def test_a_hand_made_example() -> None:
    got = summarise(tally(P, Y))
    assert got["accuracy"] == 0.75
    assert got["nll"] == pytest.approx(-math.log(0.7 * 0.3 * 0.5 * 0.6) / 4, rel=1e-6)
    assert got["brier"] == pytest.approx((0.14 + 0.86 + 0.375 + 0.24) / 4, rel=1e-6)
    entropies = -sum(p * math.log(p) for p in P.flatten().tolist())
    assert got["entropy"] == pytest.approx(entropies / 4, rel=1e-6) and got["mutual_information"] == 0
    assert summarise(tally(P, Y, torch.tensor([0.1, 0.2, 0.0, 0.1])))["mutual_information"] == pytest.approx(
        0.1
    )
    # the two confidences of 0.6 share a bin, one of them right: |0.7−1| + |1.2−1| + |0.5−1|
    assert got["ece"] == pytest.approx((0.3 + 0.2 + 0.5) / 4, rel=1e-6)


def test_ece_is_that_of_a_loop_over_bins() -> None:
    p, y = random_predictions(500)
    rows = [
        (max(row), row.index(max(row)) == label) for row, label in zip(p.tolist(), y.tolist(), strict=True)
    ]
    expected = 0.0
    for k in range(15):
        inside = [(c, right) for c, right in rows if k / 15 <= c < (k + 1) / 15]
        if inside:
            accuracy = sum(right for _, right in inside) / len(inside)
            confidence = sum(c for c, _ in inside) / len(inside)
            expected += len(inside) / len(rows) * abs(accuracy - confidence)
    assert summarise(tally(p, y))["ece"] == pytest.approx(expected, rel=1e-9)


def test_each_confidence_has_its_bin() -> None:
    # 15 bins: 0.51 is in the 8th, 0.9 in the 14th, 0.99 and 1 in the last
    p = torch.tensor([[0.51, 0.49], [0.9, 0.1], [0.01, 0.99], [1.0, 0.0]])
    got = tally(p, torch.tensor([0, 1, 1, 1]))
    assert got["bin_n"] == [0] * 7 + [1] + [0] * 5 + [1, 2]
    assert got["bin_correct"] == [0] * 7 + [1] + [0] * 5 + [0, 1]
    assert got["bin_confidence"][7:] == pytest.approx([0.51, 0, 0, 0, 0, 0, 0.9, 1.99])


def test_tallies_add_up() -> None:
    p, y = random_predictions(101)
    whole, parts = tally(p, y), add([tally(p[:40], y[:40]), tally(p[40:], y[40:])])
    assert whole.keys() == parts.keys()
    for key, values in whole.items():
        assert parts[key] == pytest.approx(values, rel=1e-12)
    assert whole["n"] == [101.0] and sum(whole["bin_n"]) == 101


def test_certainty_stays_finite() -> None:
    got = summarise(tally(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])))
    assert got["accuracy"] == 0.5 and got["brier"] == pytest.approx(1.0) and got["ece"] == 0.5
    # a probability of 0 counts as float32's smallest normal number
    assert got["nll"] == pytest.approx(126 * math.log(2) / 2)
