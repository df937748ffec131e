"""The tilt towards a share of weights that are on."""

import torch

from bayes_core import SpikeSlab
from bayes_core.sparsity import LIMIT, tilt


def test_the_strongest_signals_go_up_and_the_others_down() -> None:
    v = SpikeSlab().init(torch.tensor([0.1, -3.0, 0.5, 2.0]), -2.5, 0.5)
    once = tilt(v, 0.5, step=0.1)
    up, down = torch.tensor(0.1).sigmoid(), torch.tensor(-0.1).sigmoid()
    torch.testing.assert_close(once[2], torch.stack([down, up, down, up]))
    assert torch.equal(once[:2], v[:2])


def test_signal_is_mu_against_its_own_sigma() -> None:
    v = SpikeSlab().init(torch.tensor([1.0, 0.9]), -2.5, 0.5)
    v[1, 0] = 2.0  # the larger mean is the less certain one
    assert tilt(v, 0.5)[2].argmax() == 1


def test_repeated_it_lands_on_the_target() -> None:
    v = SpikeSlab().init(torch.randn(1000, generator=torch.Generator().manual_seed(0)), -2.5, 0.5)
    for _ in range(100):
        v = tilt(v, 0.2)
    assert abs(SpikeSlab().nonzero(v) - 0.2) < 0.01
    assert v[2].logit().abs().max() <= LIMIT + 1e-3
