"""Gaussian and Point against torch.distributions and autograd, both in float64."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus

from bayes_core.families import Draw, Family, Gaussian, Noise, Point, SpikeSlab, named
from bayes_core.flat import flatten, shapes_of, unflatten
from bayes_core.inference.plain import nll_gradient

GAUSSIAN, POINT = Gaussian(), Point()
# ρ is drawn from [low, high]: σ from 6e-6 (ρ = −12) to 10.
RANGES = {"usual": (-3.0, -2.0), "tiny": (-12.0, -9.0), "large": (3.0, 10.0), "mixed": (-9.0, 5.0)}


def random_pair(low: float, high: float, seed: int, size: int = 60) -> tuple[Tensor, Tensor]:
    """q and w whose means lie about one σ_w apart."""
    random = torch.Generator().manual_seed(seed)
    rho_q, rho_w = torch.empty(2, size).uniform_(low, high, generator=random)
    mu_w, distance = torch.randn(2, size, generator=random)
    w = torch.stack([mu_w, rho_w])
    return torch.stack([mu_w + softplus(rho_w) * distance, rho_q]), w


def reference_kl(q: Tensor, w: Tensor) -> Tensor:
    return kl_divergence(Normal(q[0], softplus(q[1])), Normal(w[0], softplus(w[1]))).sum()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("spread", RANGES)
def test_kl_and_its_gradients_are_those_of_torch_distributions(spread: str, seed: int) -> None:
    q, w = random_pair(*RANGES[spread], seed)
    before = q.clone(), w.clone()
    q64, w64 = q.double().requires_grad_(), w.double().requires_grad_()
    expected = reference_kl(q64, w64)
    expected.backward()

    # atol only matters where an element's two terms happen to cancel
    small = 1e-6 * q64.grad.abs().mean().item(), 1e-6 * w64.grad.abs().mean().item()
    torch.testing.assert_close(GAUSSIAN.kl(q, w).double(), expected.detach(), rtol=1e-4, atol=0)
    torch.testing.assert_close(GAUSSIAN.kl_gradient_q(q, w).double(), q64.grad, rtol=1e-4, atol=small[0])
    torch.testing.assert_close(GAUSSIAN.kl_gradient_w(q, w).double(), w64.grad, rtol=1e-4, atol=small[1])
    assert torch.equal(q, before[0]) and torch.equal(w, before[1])


def test_kl_by_hand() -> None:
    # σ_q = 1, σ_w = 2, means 3 apart: ln 2 + (1 + 9)/8 − 1/2
    rho_1, rho_2 = math.log(math.expm1(1)), math.log(math.expm1(2))
    q, w = torch.tensor([[3.0], [rho_1]]), torch.tensor([[0.0], [rho_2]])
    assert GAUSSIAN.kl(q, w).item() == pytest.approx(math.log(2) + 10 / 8 - 0.5, rel=1e-6)
    assert GAUSSIAN.kl(q, q).item() == 0


def test_likelihood_gradient_is_autograd_through_the_draw() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(7, 5), torch.randint(0, 3, (7,))
    v = GAUSSIAN.init(flatten(network), rho_init=-1.0)
    draw = GAUSSIAN.sample(v, torch.Generator().manual_seed(1))
    before = v.clone(), draw.theta.clone(), draw.g.clone()

    v64 = v.double().requires_grad_()
    theta = v64[0] + softplus(v64[1]) * draw.g.double()
    logits = functional_call(network.double(), unflatten(theta, shapes_of(network)), (x.double(),))
    cross_entropy(logits, y, reduction="sum").backward()

    _, at_theta = nll_gradient(network.float(), shapes_of(network), draw.theta, {}, x, y)
    got = GAUSSIAN.likelihood_gradient(v, draw, at_theta)
    torch.testing.assert_close(got.double(), v64.grad, rtol=1e-4, atol=1e-6)
    assert torch.equal(v, before[0]) and torch.equal(draw.theta, before[1]) and torch.equal(draw.g, before[2])


@pytest.mark.parametrize(
    "rho",
    [
        -2.0,
        -2.5,
        -3.0,
    ],
)
def test_gradients_of_the_kl_vanish_exactly_where_q_is_w(rho: float) -> None:
    v = GAUSSIAN.init(torch.tensor([0.1, -0.2]), rho)
    assert not GAUSSIAN.kl_gradient_q(v, v).any()
    assert not GAUSSIAN.kl_gradient_w(v, v).any()


def test_a_draw_has_the_stated_mean_and_standard_deviation() -> None:
    draws, mu, sigma = 200_000, 0.3, 0.05
    v = GAUSSIAN.init(torch.full((draws,), mu), math.log(math.expm1(sigma)))
    theta, g, *_ = GAUSSIAN.sample(v, torch.Generator().manual_seed(0))
    # five standard errors: of a mean sd/√n, of a standard deviation sd/√(2n)
    for values, mean, sd in ((theta, mu, sigma), (g, 0.0, 1.0)):
        assert values.mean().item() == pytest.approx(mean, abs=5 * sd / math.sqrt(draws))
        assert values.std().item() == pytest.approx(sd, abs=5 * sd / math.sqrt(2 * draws))
    # g⁴ has mean 3 and variance 105 − 9: normal in shape too, not only in scale
    assert g.double().pow(4).mean().item() == pytest.approx(3, abs=5 * math.sqrt(96 / draws))


def test_theta_is_mu_plus_sigma_g_for_the_returned_g() -> None:
    v = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    theta, g, *_ = GAUSSIAN.sample(v, torch.Generator().manual_seed(1))
    mu, noise = v[0].double(), (softplus(v[1]).double() * g.double())
    # exact up to float32's last bit: a fused multiply-add rounds once, a product and a sum twice
    assert ((theta - (mu + noise)).abs() <= 2**-23 * (mu.abs() + noise.abs())).all()


def test_a_mirrored_draw_lies_as_far_on_the_other_side() -> None:
    v = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    noise = GAUSSIAN.noise(v, torch.Generator().manual_seed(1))
    draw, mirrored = GAUSSIAN.reparameterise(v, noise), GAUSSIAN.reparameterise(v, noise.mirrored())
    assert torch.equal(mirrored.g, -draw.g)
    torch.testing.assert_close(mirrored.theta, v[0] - softplus(v[1]) * draw.g, rtol=1e-5, atol=1e-6)


def test_a_draw_depends_on_its_generator_alone() -> None:
    v = torch.zeros(2, 10)
    first = GAUSSIAN.sample(v, torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    again = GAUSSIAN.sample(v, torch.Generator().manual_seed(1))
    other = GAUSSIAN.sample(v, torch.Generator().manual_seed(2))
    assert torch.equal(first.theta, again.theta) and torch.equal(first.g, again.g)
    assert not torch.equal(first.theta, other.theta)
    assert not v.any()


def test_init_centre_and_point() -> None:
    mu = torch.tensor([1.0, -2.0])
    assert GAUSSIAN.init(mu, -2.5).tolist() == [[1.0, -2.0], [-2.5, -2.5]]
    assert GAUSSIAN.centre(GAUSSIAN.init(mu)).tolist() == [1.0, -2.0]
    assert Point().centre(mu[None]).tolist() == [1.0, -2.0]
    drawn: Draw = Point().sample(mu[None], torch.Generator())
    assert drawn.theta.tolist() == [1.0, -2.0]


def test_problem_names_what_does_not_fit() -> None:
    v = torch.zeros(2, 3)
    assert GAUSSIAN.problem(v) is None
    assert "(1, 3) instead of (2, T)" in str(GAUSSIAN.problem(v[:1]))
    assert "(3,)" in str(GAUSSIAN.problem(v[0]))
    for bad in (math.nan, math.inf):
        broken = v.clone()
        broken[1, 2] = bad
        assert "not finite" in str(GAUSSIAN.problem(broken))


def test_between_points_kl_is_half_the_squared_distance() -> None:
    q, w = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([[0.0, 1.0, 0.5]])
    assert POINT.kl(q, w).item() == 5.0 and POINT.kl_each(q, w).tolist() == [0.5, 4.5, 0.0]
    unit = kl_divergence(Normal(q[0], torch.ones(3)), Normal(w[0], torch.ones(3)))
    torch.testing.assert_close(POINT.kl_each(q, w), unit)
    assert POINT.kl_gradient_q(q, w).tolist() == [[1.0, -3.0, 0.0]]
    assert POINT.kl_gradient_w(q, w).tolist() == [[-1.0, 3.0, 0.0]]
    assert POINT.likelihood_gradient(q, POINT.sample(q, torch.Generator()), w[0]).tolist() == w.tolist()
    assert POINT.init(q[0]).tolist() == q.tolist() and not POINT.sigma(q).any()
    assert POINT.inclusion(q).tolist() == [1.0, 1.0, 1.0]


FAMILIES = [POINT, GAUSSIAN, SpikeSlab(0.3), SpikeSlab(gated=False)]


@pytest.mark.parametrize("family", FAMILIES, ids=["point", "gaussian", "spike-slab", "gates off"])
def test_parts_stand_for_the_distribution_and_gradients_add_up(family: Family) -> None:
    random = torch.Generator().manual_seed(0)
    q, w = torch.randn(2, 3, 40, generator=random)[:, : len(family.rows)]
    noise = family.noise(q, random)
    of_q, of_w, theta = family.parts(q), family.parts(w), torch.empty(40)
    draw = family.reparameterise(of_q, noise, theta)
    assert draw.theta is theta and torch.equal(theta, family.reparameterise(q, noise).theta)
    stacked = family.reparameterise(q, Noise.stack([noise, noise.mirrored()])).theta
    assert torch.equal(stacked[0], theta) and (stacked[1] != theta).any() == family.uncertain
    total = family.kl_gradient_q(of_q, of_w, torch.full_like(q, torch.nan)).clone()
    assert torch.equal(total, family.kl_gradient_q(q, w))
    at_theta = torch.randn(40, generator=random)
    assert family.likelihood_gradient(of_q, draw, at_theta, total) is total
    alone = family.likelihood_gradient(q, draw, at_theta)
    torch.testing.assert_close(total, family.kl_gradient_q(q, w) + alone)
    assert torch.equal(
        family.kl_gradient_w(of_q, of_w, torch.full_like(q, torch.nan)), family.kl_gradient_w(q, w)
    )
    assert not family.kl_gradient_q(q, q).any() and not family.kl_gradient_w(q, q).any()


def test_a_gate_that_is_all_but_decided_still_has_its_slope() -> None:
    """γ̃(1−γ̃) = e^(−η/τ) far out, where 1 − γ̃ alone would be 0 in float32."""
    family, v = SpikeSlab(0.5), torch.tensor([[1.0, 1.0], [-50.0, -50.0], [15.0, -15.0]])
    draw = family.reparameterise(v, Noise(torch.zeros(2), torch.zeros(2)))
    by_logit = family.likelihood_gradient(v, draw, torch.ones(2))[2]
    torch.testing.assert_close(by_logit, torch.full((2,), 2 * math.exp(-30)), rtol=1e-4, atol=0)


def test_families_have_names() -> None:
    assert [named(family.name).rows for family in (POINT, GAUSSIAN)] == [("theta",), ("mu", "rho")]
    assert named("spike-slab").gated and not named("spike-slab", gated=False).gated
    assert [family.uncertain for family in FAMILIES] == [False, True, True, True]
    assert [family.gated for family in FAMILIES] == [False, False, True, False]
    with pytest.raises(ValueError, match="no family 'laplace'; there are point, gaussian, spike-slab"):
        named("laplace")
