"""Temperature scaling recovers a known temperature; the reliability curve against a hand-made tally."""

import math

import pytest
import torch

from bayes_core.predict.calibration import COLDEST, PSEUDO, fit_temperature, reliability_bins, scale
from bayes_core.predict.metrics import add, summarise, tally


def predictions(n: int, seed: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(n, 5, generator=random, dtype=torch.float64)).softmax(-1)


def labels(p: torch.Tensor, seed: int = 1) -> torch.Tensor:
    return torch.multinomial(p, 1, generator=torch.Generator().manual_seed(seed))[:, 0]


def test_scaling_by_hand() -> None:
    p = torch.tensor([[0.64, 0.16, 0.2]], dtype=torch.float64)
    root = torch.tensor([0.8, 0.4, math.sqrt(0.2)], dtype=torch.float64)
    torch.testing.assert_close(scale(p, 2.0)[0], root / root.sum())
    torch.testing.assert_close(scale(p, 1.0), p)
    assert scale(torch.tensor([[1.0, 0.0]]), 3.0).isfinite().all()


@pytest.mark.parametrize("true", [0.4, 1.0, 2.5])
def test_a_known_temperature_is_found_and_the_class_never_changes(true: float) -> None:
    p = predictions(20_000)
    y = labels(scale(p, true))
    found = fit_temperature(p, y)
    assert found == pytest.approx(true, rel=0.05)
    before, after = summarise(tally(p, y)), summarise(tally(scale(p, found), y))
    assert before["accuracy"] == after["accuracy"] and after["ece"] < 0.02
    if true != 1.0:
        assert after["nll"] < before["nll"] - 0.01 and after["ece"] < before["ece"] / 3


def test_it_minimises_the_nll_of_labels_and_pseudo_examples() -> None:
    p, k = predictions(60), PSEUDO / 60
    y = labels(scale(p, 1.7))

    def loss(temperature: float) -> float:
        log = scale(p, temperature).log()
        return float(-log.gather(-1, y[:, None]).sum() - k * (p * log).sum())

    grid = [math.exp(i / 2000) for i in range(-4000, 6000)]
    assert fit_temperature(p, y) == pytest.approx(min(grid, key=loss), rel=1e-3)


def test_a_validation_set_without_an_error_does_not_ask_for_certainty() -> None:
    p = torch.full((20, 2), 0.2).index_fill_(1, torch.tensor([0]), 0.8)
    found = fit_temperature(p, torch.zeros(20, dtype=torch.int64))
    # 20 of 20 right and 10 pseudo examples with 8 right: 28 of 30, and p^(1/T) with p = 0.8 must say so
    assert scale(p[:1], found)[0, 0].item() == pytest.approx(28 / 30, abs=1e-6)
    assert COLDEST < found < 1


def test_the_reliability_curve_of_two_clients() -> None:
    one = tally(torch.tensor([[0.9, 0.1], [0.92, 0.08]]), torch.tensor([0, 1]))
    other = tally(torch.tensor([[0.55, 0.45], [0.1, 0.9]]), torch.tensor([0, 1]))
    low, high = reliability_bins(add([one, other]))
    assert (low.n, low.accuracy, high.n) == (1, 1.0, 3)
    assert low.confidence == pytest.approx(0.55)
    assert high.confidence == pytest.approx((0.9 + 0.92 + 0.9) / 3) and high.accuracy == pytest.approx(2 / 3)
    gaps = sum(one.n * abs(one.confidence - one.accuracy) for one in (low, high)) / 4
    assert gaps == pytest.approx(summarise(add([one, other]))["ece"])
