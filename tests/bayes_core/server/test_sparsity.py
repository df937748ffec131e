"""The shift towards a share of weights that are on."""

import torch

from bayes_core import SpikeSlab
from bayes_core.server.sparsity import shift


def spread(count: int = 1000) -> torch.Tensor:
    """A distribution whose λ are anywhere between 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    v = SpikeSlab().init(torch.randn(count, generator=generator), -2.5, 0.5)
    v[2] = torch.sigmoid(3 * torch.randn(count, generator=generator))
    return v


def test_a_near_target_is_met_at_once_by_one_shift_of_all_logits() -> None:
    v = spread()
    target = torch.sigmoid(v[2].logit() + 0.05).mean().item()
    met = shift(v, target)
    torch.testing.assert_close(met[2].logit() - v[2].logit(), torch.full((1000,), 0.05), atol=1e-3, rtol=0)
    assert torch.equal(met[:2], v[:2])


def test_a_far_target_is_approached_by_one_step() -> None:
    v = SpikeSlab().init(torch.zeros(4), -2.5, 0.5)
    torch.testing.assert_close(shift(v, 0.2, step=0.1)[2], torch.full((4,), -0.1).sigmoid())
    torch.testing.assert_close(shift(v, 0.9, step=0.1)[2], torch.full((4,), 0.1).sigmoid())


def test_repeated_it_lands_on_the_target_and_keeps_the_order() -> None:
    v = before = spread()
    for _ in range(100):
        v = shift(v, 0.2)
    assert abs(SpikeSlab().nonzero(v) - 0.2) < 1e-4
    # numbers this close to 0 and 1 may meet, but none overtakes another
    assert (v[2][before[2].argsort()].diff() >= 0).all()
