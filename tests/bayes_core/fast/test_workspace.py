"""The in-place gradients against the plain formulas of families.py."""

import pytest
import torch
from torch import Tensor

from bayes_core.families import Family, Gaussian, Noise, SpikeSlab
from bayes_core.fast.workspace import workspace

T = 500
ZETA = 3.0
FAMILIES = [Gaussian(), SpikeSlab(temperature=0.7), SpikeSlab(gated=False)]


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


def distributions(family: Family) -> tuple[Tensor, Tensor]:
    rows = torch.randn(2, len(family.rows), T, generator=seeded(0))
    rows[:, 1] -= 2.0
    if len(family.rows) == 3 and not family.gated:
        rows[:, 2] = 1.0
    return rows[0], rows[1]


@pytest.mark.parametrize("family", FAMILIES, ids=["gaussian", "spike-slab", "gates off"])
def test_gradients_are_those_of_the_family(family: Family) -> None:
    q, w = distributions(family)
    work = workspace(family, q, w, ZETA)
    at_theta, at_mirror = torch.randn(2, T, generator=seeded(1))

    work.clear()
    thetas = work.draw(seeded(2), seeded(3)).clone()
    work.add(at_theta.clone(), at_mirror.clone())
    noise = family.noise(q, seeded(2), seeded(3))
    draws = family.reparameterise(q, noise), family.reparameterise(q, noise.mirrored())
    expected = ZETA * family.kl_gradient_q(q, w)
    for theta, draw, gradient in zip(thetas, draws, (at_theta, at_mirror), strict=True):
        torch.testing.assert_close(theta, draw.theta, rtol=1e-5, atol=1e-6)
        expected += family.likelihood_gradient(q, draw, gradient)
    torch.testing.assert_close(work.q_gradient(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(work.w_gradient(), family.kl_gradient_w(q, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=["gaussian", "spike-slab", "gates off"])
def test_what_is_carried_follows_q_and_w(family: Family) -> None:
    q, w = distributions(family)
    work = workspace(family, q, w, ZETA)
    q.mul_(0.9)
    work.q_moved()
    w.mul_(1.1)
    work.w_moved()
    work.clear()
    torch.testing.assert_close(work.q_gradient(), ZETA * family.kl_gradient_q(q, w), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(work.w_gradient(), family.kl_gradient_w(q, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=["gaussian", "spike-slab", "gates off"])
def test_at_q_equal_to_w_both_gradients_vanish_exactly(family: Family) -> None:
    q, _ = distributions(family)
    work = workspace(family, q, q.clone(), ZETA)
    work.clear()
    assert not work.q_gradient().any() and not work.w_gradient().any()


def test_mirrored_noise_is_the_opposite() -> None:
    noise = Noise(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0]))
    mirrored = noise.mirrored()
    assert mirrored.g.tolist() == [-1.0, 2.0] and mirrored.logit_u is not None
    assert mirrored.logit_u.tolist() == [-0.5, 0.0]
