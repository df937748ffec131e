"""SpikeSlab against brute-force sums, torch.distributions and autograd; with its gate off, against Gaussian."""

import math

import pytest
import torch
from recipes import recipe_of
from torch import Tensor, nn
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence
from torch.func import functional_call
from torch.nn.functional import cross_entropy, softplus

from bayes_core.families import Gaussian, Noise, SpikeSlab, build_family
from bayes_core.families.spike_slab import LAMBDA_MARGIN
from bayes_core.flat import flatten, shapes_of, unflatten
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.inference.plain import nll_gradient
from bayes_core.inference.recipe import Recipe
from bayes_core.inference.update import ClientState, client_update, minibatches
from bayes_core.server.aggregate import moments

SPIKE, GAUSSIAN, OFF = SpikeSlab(), Gaussian(), SpikeSlab(gated=False)
# logit λ is drawn from [low, high]: λ = 0.5 ± 0.4, near 0 and near 1 (the margins are at ±13.8)
LOGITS = {"middle": (-2.0, 2.0), "near 0": (-13.0, -6.0), "near 1": (6.0, 13.0), "both ends": (-13.0, 13.0)}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def free_pair(low: float, high: float, seed: int, size: int = 60) -> tuple[Tensor, Tensor]:
    """q and w in free coordinates, their means about one σ_w apart."""
    random = seeded(seed)
    rho = torch.empty(2, size).uniform_(-4, 1, generator=random)
    logit = torch.empty(2, size).uniform_(low, high, generator=random)
    mu, distance = torch.randn(2, size, generator=random)
    q = torch.stack([mu + softplus(rho[1]) * distance, rho[0], logit[0]])
    return q, torch.stack([mu, rho[1], logit[1]])


def objective(q: Tensor, w: Tensor) -> Tensor:
    """Σ KL(Bern λ_q ‖ Bern λ_w) + Σ λ_q·KL(N_q ‖ N_w) in free coordinates, by torch.distributions."""
    gates = kl_divergence(Bernoulli(logits=q[2]), Bernoulli(logits=w[2]))
    slabs = kl_divergence(Normal(q[0], softplus(q[1])), Normal(w[0], softplus(w[1])))
    return (gates + q[2].sigmoid() * slabs).sum()


def brute_force(q: Tensor, w: Tensor) -> float:
    """The same of bound distributions, weight by weight, with nothing but `math`."""
    total = 0.0
    for (mu_q, rho_q, on_q), (mu_w, rho_w, on_w) in zip(q.T.tolist(), w.T.tolist(), strict=True):
        sigma_q, sigma_w = math.log1p(math.exp(rho_q)), math.log1p(math.exp(rho_w))
        if on_q > 0:
            slab = math.log(sigma_w / sigma_q) + (sigma_q**2 + (mu_q - mu_w) ** 2) / (2 * sigma_w**2) - 0.5
            total += on_q * (math.log(on_q / on_w) + slab)
        if on_q < 1:
            total += (1 - on_q) * math.log((1 - on_q) / (1 - on_w))
    return total


# ---------------------------------------------------------------------- KL and its gradients


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("ends", LOGITS)
def test_kl_is_the_brute_force_sum_and_that_of_torch_distributions(ends: str, seed: int) -> None:
    free = free_pair(*LOGITS[ends], seed)
    q, w = (SPIKE.constrain(v) for v in free)
    assert SPIKE.kl(q, w).item() == pytest.approx(brute_force(q, w), rel=1e-9)
    gates = kl_divergence(Bernoulli(q[2].double()), Bernoulli(w[2].double()))
    slabs = kl_divergence(*(Normal(v[0].double(), softplus(v[1].double())) for v in (q, w)))
    assert SPIKE.kl(q, w).item() == pytest.approx((gates + q[2] * slabs).sum().item(), rel=1e-9)
    # 1 − λ of a float32 λ near 1 has few digits; otherwise the free form says the same
    rel = 1e-6 if ends in ("middle", "near 0") else 0.02
    assert SPIKE.kl(q, w).item() == pytest.approx(objective(*(v.double() for v in free)).item(), rel=rel)


@pytest.mark.parametrize("on_w", [1e-6, 0.3, 1 - 1e-6])
def test_kl_of_a_weight_that_is_surely_off_or_on(on_w: float) -> None:
    rho_1, rho_2 = math.log(math.expm1(1)), math.log(math.expm1(2))
    w = torch.tensor([[0.0], [rho_2], [on_w]], dtype=torch.float64)
    for on_q, expected in ((0.0, -math.log1p(-on_w)), (1.0, -math.log(on_w) + math.log(2) + 10 / 8 - 0.5)):
        q = torch.tensor([[3.0], [rho_1], [on_q]], dtype=torch.float64)
        assert SPIKE.kl(q, w).item() == pytest.approx(expected, rel=1e-9)
        assert SPIKE.kl(q, q).item() == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("ends", LOGITS)
def test_gradients_of_the_kl_are_those_of_autograd(ends: str, seed: int) -> None:
    q, w = free_pair(*LOGITS[ends], seed)
    before = q.clone(), w.clone()
    q64, w64 = q.double().requires_grad_(), w.double().requires_grad_()
    objective(q64, w64).backward()
    got_q, got_w = SPIKE.kl_gradient_q(q, w).double(), SPIKE.kl_gradient_w(q, w).double()

    # atol matters where two terms of one element cancel, and for 1 − λ near λ = 1, which is good to 6e-8
    for got, expected in ((got_q, q64.grad), (got_w, w64.grad)):
        scale = expected[:2].abs().mean().item()
        torch.testing.assert_close(got[:2], expected[:2], rtol=1e-4, atol=1e-6 * scale)
    slabs = kl_divergence(*(Normal(v[0].double(), softplus(v[1].double())) for v in (q, w)))
    size = (q[2] - w[2]).double().abs() + slabs
    assert ((got_q[2] - q64.grad[2]).abs() <= 1e-4 * q64.grad[2].abs() + 2e-7 * size).all()
    torch.testing.assert_close(got_w[2], w64.grad[2], rtol=1e-4, atol=2e-7)
    if ends == "middle":
        torch.testing.assert_close(got_q[2], q64.grad[2], rtol=1e-4, atol=1e-6)
    assert torch.equal(q, before[0]) and torch.equal(w, before[1])


@pytest.mark.parametrize("ends", LOGITS)
def test_gradients_of_the_kl_vanish_exactly_where_q_is_w(ends: str) -> None:
    v, _ = free_pair(*LOGITS[ends], seed=0)
    assert not SPIKE.kl_gradient_q(v, v).any()
    assert not SPIKE.kl_gradient_w(v, v).any()


# ---------------------------------------------------------------------- forms


def test_free_and_bound_are_each_others_inverse() -> None:
    v = torch.cat(
        [torch.randn(2, 9), torch.tensor([[2e-6, 1e-4, 0.01, 0.3, 0.5, 0.7, 0.99, 0.9999, 0.999995]])]
    )
    free = SPIKE.unconstrain(v)
    expected = [math.log(on / (1 - on)) for on in v[2].double().tolist()]
    assert free[2].tolist() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(free[:2], v[:2]) and torch.equal(SPIKE.constrain(free)[:2], v[:2])
    torch.testing.assert_close(SPIKE.constrain(free)[2], v[2], rtol=2e-6, atol=0)
    back = SPIKE.unconstrain(SPIKE.constrain(free))
    torch.testing.assert_close(back[2, :6], free[2, :6], rtol=1e-6, atol=1e-6)


def test_free_of_a_sure_gate_stays_finite() -> None:
    v = torch.tensor([[0.1, 0.2], [-2.5, -2.5], [0.0, 1.0]])
    limit = math.log((1 - LAMBDA_MARGIN) / LAMBDA_MARGIN)
    assert SPIKE.unconstrain(v)[2].tolist() == pytest.approx([-limit, limit], rel=1e-6)


def test_after_extrapolation_puts_lambda_back() -> None:
    v = torch.tensor([[5.0] * 5, [-9.0] * 5, [-0.4, 0.0, 0.25, 1.0, 1.7]])
    got = SPIKE.after_extrapolation(v)
    assert got[:2].tolist() == v[:2].tolist()
    assert got[2].tolist() == pytest.approx([1e-6, 1e-6, 0.25, 1 - 1e-6, 1 - 1e-6], abs=6e-8)
    assert got[2].min() > 0 and got[2].max() < 1
    assert torch.equal(OFF.after_extrapolation(v), v)


def test_problem_names_what_does_not_fit() -> None:
    v = torch.zeros(3, 4)
    v[2] = torch.tensor([0.0, 0.5, 1.0, 0.2])
    assert SPIKE.problem(v) is None
    assert "(2, 4) instead of (3, T)" in str(SPIKE.problem(v[:2]))
    for row, value, words in (
        (2, 1.5, "λ outside 0 … 1"),
        (2, -0.01, "λ outside 0 … 1"),
        (2, math.nan, "not finite"),
        (1, 26.0, "ρ beyond ±25"),
        (0, math.inf, "not finite"),
    ):
        broken = v.clone()
        broken[row, 3] = value
        assert words in str(SPIKE.problem(broken))


def test_init_centre_and_nonzero() -> None:
    v = SPIKE.init(torch.tensor([1.0, -2.0]), -2.5, 0.25)
    assert v.tolist() == [[1.0, -2.0], [-2.5, -2.5], [0.25, 0.25]]
    assert SPIKE.centre(SPIKE.unconstrain(v)).tolist() == pytest.approx([0.25, -0.5], rel=1e-6)
    v[2, 1] = 0.75
    assert SPIKE.nonzero(v) == 0.5
    assert OFF.centre(OFF.init(torch.tensor([1.0, -2.0]), lambda_init=1.0)).tolist() == [1.0, -2.0]
    assert GAUSSIAN.nonzero(v[:2]) is None


def test_lambda_init_of_one_switches_the_gate_off() -> None:
    assert isinstance(build_family("gaussian", 0.5, 0.5), Gaussian)
    on, off = build_family("spike-slab", 0.3, 0.99), build_family("spike-slab", 0.3, 1.0)
    assert isinstance(on, SpikeSlab) and on.gated and on.temperature == 0.3
    assert isinstance(off, SpikeSlab) and not off.gated


# ---------------------------------------------------------------------- draws


def test_one_weight_by_hand() -> None:
    # μ = 2, σ = 1, g = ½, logit λ = 0, u = ¾: η = ln 3 > 0, so γ = 1 and θ = 2.5. With τ = ½ the soft gate is
    # sigmoid(2 ln 3) = 0.9, its slope 0.9·0.1/τ = 0.18. −log p = ½(2θ − 3)²: G = 2·(5 − 3) = 4.
    rho = math.log(math.expm1(1))
    v = torch.tensor([[2.0], [rho], [0.0]])
    noise = Noise(torch.tensor([0.5]), torch.tensor([math.log(3)]))
    network = nn.Linear(1, 1, bias=False)
    x, y = torch.tensor([[2.0]]), torch.tensor([[3.0]])

    def gradient(noise: Noise) -> tuple[float, list[float]]:
        draw = SPIKE.reparameterise(v, noise)
        shapes = shapes_of(network)
        _, at_theta = nll_gradient(
            network, shapes, draw.theta, {}, x, y, lambda output, y: 0.5 * (output - y).square().sum()
        )
        return draw.theta.item(), SPIKE.likelihood_gradient(v, draw, at_theta).flatten().tolist()

    theta, got = gradient(noise)
    assert theta == 2.5
    assert got == pytest.approx([4.0, 4 * 0.5 * (1 - math.exp(-1)), 4 * 2.5 * 0.18], rel=1e-5)
    # Its mirror image, g = −½ and u = ¼: γ = 0 and θ = 0, G = 2·(0 − 3) = −6; the slab would be at 1.5 and
    # the slope is that of 0.1. Only the gate learns from a weight that is off.
    theta, got = gradient(noise.mirrored())
    assert theta == 0
    assert got == pytest.approx([0, 0, -6 * 1.5 * 0.18], rel=1e-5)


@pytest.mark.parametrize("temperature", [0.25, 0.5, 1.0])
def test_likelihood_gradient_is_autograd_through_the_draw(temperature: float) -> None:
    family = SpikeSlab(temperature)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    x, y = torch.randn(7, 5), torch.randint(0, 3, (7,))
    v = torch.cat([GAUSSIAN.init(flatten(network), rho_init=-1.0), torch.randn(1, 39)])
    noise = family.noise(v, seeded(1), seeded(2))
    draw = family.reparameterise(v, noise)
    assert draw.gamma is not None and noise.logit_u is not None
    assert set(draw.gamma.tolist()) == {0.0, 1.0}

    v64 = v.double().requires_grad_()
    eta = v64[2] + noise.logit_u.double()
    soft = torch.sigmoid(eta / temperature)
    gate = (eta > 0).double() - soft.detach() + soft
    theta = gate * (v64[0] + softplus(v64[1]) * noise.g.double())
    torch.testing.assert_close(draw.theta.double(), theta.detach(), rtol=1e-5, atol=1e-7)
    logits = functional_call(network.double(), unflatten(theta, shapes_of(network)), (x.double(),))
    cross_entropy(logits, y, reduction="sum").backward()

    _, at_theta = nll_gradient(network.float(), shapes_of(network), draw.theta, {}, x, y)
    got = family.likelihood_gradient(v, draw, at_theta)
    torch.testing.assert_close(got.double(), v64.grad, rtol=1e-4, atol=2e-6)
    off = draw.gamma == 0
    assert not got[:2, off].any() and got[2, off].any(), "a weight that is off can still be switched on"


@pytest.mark.parametrize("on", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("mirrored", [False, True])
def test_a_draw_is_on_with_probability_lambda(on: float, mirrored: bool) -> None:
    draws, mu, sigma = 200_000, 0.3, 0.2
    v = SPIKE.unconstrain(SPIKE.init(torch.full((draws,), mu), math.log(math.expm1(sigma)), on))
    noise = SPIKE.noise(v, seeded(0), seeded(1))
    draw = SPIKE.reparameterise(v, noise.mirrored() if mirrored else noise)
    # five standard errors; θ² has mean λ(μ² + σ²)
    assert draw.gamma.mean().item() == pytest.approx(on, abs=5 * math.sqrt(on * (1 - on) / draws))
    variance = on * (mu**2 + sigma**2) - (on * mu) ** 2
    assert draw.theta.double().mean().item() == pytest.approx(on * mu, abs=5 * math.sqrt(variance / draws))
    assert torch.equal(draw.theta == 0, draw.gamma == 0)
    lit = draw.theta[draw.gamma == 1].double()
    assert lit.mean().item() == pytest.approx(mu, abs=5 * sigma / math.sqrt(len(lit)))
    assert lit.std().item() == pytest.approx(sigma, abs=5 * sigma / math.sqrt(2 * len(lit)))


def test_slab_and_gates_have_streams_of_their_own() -> None:
    v = SPIKE.unconstrain(SPIKE.init(torch.zeros(1000)))
    first, second, plain = seeded(1), seeded(1), seeded(1)
    one = SPIKE.sample(v, first, seeded(7))
    other = SPIKE.sample(v, second, seeded(8))
    gaussian = GAUSSIAN.sample(v[:2], plain)
    assert torch.equal(one.g, other.g) and torch.equal(one.g, gaussian.g)
    assert torch.equal(OFF.sample(v, seeded(1), seeded(7)).g, gaussian.g)
    assert not torch.equal(one.gamma, other.gamma)
    assert torch.equal(SPIKE.sample(v, seeded(2), seeded(7)).gamma, one.gamma)
    assert torch.equal(first.get_state(), plain.get_state()), "gates take nothing from the slab's stream"


# ---------------------------------------------------------------------- the gate off: Gaussian, bit by bit


def problem_of(weights: int = 26) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    assert len(flatten(network)) == weights
    return network, torch.randn(12, 3), torch.randint(0, 2, (12,))


def test_without_its_gate_draws_and_gradients_are_the_gaussians() -> None:
    q, w = (torch.cat([v[:2], torch.ones(1, 60)]) for v in free_pair(-1, 1, 0))
    assert torch.equal(OFF.unconstrain(q), q) and torch.equal(OFF.constrain(q), q)
    draw, plain = OFF.sample(q, seeded(3), seeded(4)), GAUSSIAN.sample(q[:2], seeded(3))
    assert torch.equal(draw.theta, plain.theta) and torch.equal(draw.g, plain.g) and draw.gamma is None
    at_theta = torch.randn(60, generator=seeded(5))
    for got, expected in (
        (OFF.likelihood_gradient(q, draw, at_theta), GAUSSIAN.likelihood_gradient(q[:2], plain, at_theta)),
        (OFF.kl_gradient_q(q, w), GAUSSIAN.kl_gradient_q(q[:2], w[:2])),
        (OFF.kl_gradient_w(q, w), GAUSSIAN.kl_gradient_w(q[:2], w[:2])),
    ):
        assert torch.equal(got[:2], expected) and not got[2].any()
    assert OFF.kl(q, w).item() == pytest.approx(GAUSSIAN.kl(q[:2], w[:2]).item(), rel=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("lr_lambda", [0.01, 0.5])
def test_without_its_gate_client_rounds_are_the_gaussians(optimizer: str, lr_lambda: float) -> None:
    network, x, y = problem_of()
    recipe = recipe_of(5, 2, 5, 2, 2.0, optimizer, 0.01, 0.02, lr_lambda)
    w2 = GAUSSIAN.init(flatten(network), -1.0)
    w3 = OFF.init(flatten(network), -1.0, 1.0)
    plain, gateless = ClientState.start(w2, network, optimizer), ClientState.start(w3, network, optimizer)
    for round_ in range(4):
        a = client_update(network, GAUSSIAN, plain, w2, x, y, recipe, seeded(round_))
        b = client_update(network, OFF, gateless, w3, x, y, recipe, seeded(round_), gates=seeded(99))
        assert torch.equal(a.w, b.w[:2]) and torch.equal(a.personal.q, b.personal.q[:2])
        assert a.loss == b.loss
        assert (b.w[2] == 1).all() and (b.personal.q[2] == 1).all()
        plain, gateless, w2, w3 = a.personal, b.personal, a.w, b.w
    assert (w2 - GAUSSIAN.init(flatten(network), -1.0)).abs().max() > 0.1  # it did move


# ---------------------------------------------------------------------- client_update


def by_hand(
    q, w, q_steps, w_steps, x, y, recipe: Recipe, slab: torch.Generator, gates: torch.Generator
) -> None:
    """sFedBayes' box through autograd, in float64, on leaves q and w in free coordinates."""
    n, b = len(x), recipe.batch_size
    for batch in minibatches(n, b, recipe.local_steps, slab):
        for _ in range(recipe.personal_steps):
            nll = 0.0
            for _ in range(recipe.mc_samples):
                g = torch.empty(26).normal_(generator=slab).double()
                logit_u = torch.empty(26).uniform_(1e-7, 1 - 1e-7, generator=gates).double().logit()
                for sign, half in ((1, batch[: (b + 1) // 2]), (-1, batch[(b + 1) // 2 :])):
                    eta = q[2] + sign * logit_u
                    soft = torch.sigmoid(eta / 0.5)
                    gate = (eta > 0).double() - soft.detach() + soft
                    theta = gate * (q[0] + softplus(q[1]) * sign * g)
                    hidden = torch.tanh(x[half] @ theta[:12].view(4, 3).T + theta[12:16])
                    logits = hidden @ theta[16:24].view(2, 4).T + theta[24:]
                    nll -= Categorical(logits=logits).log_prob(y[half]).sum()
            q_steps.zero_grad()
            (n / b * nll / recipe.mc_samples + recipe.zeta * objective(q, w.detach())).backward()
            q_steps.step()
        w_steps.zero_grad()
        objective(q.detach(), w).backward()
        w_steps.step()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_client_rounds_are_the_papers_box(optimizer: type[torch.optim.Optimizer]) -> None:
    network, x, y = problem_of()
    name = optimizer.__name__.lower()
    recipe = recipe_of(4, 2, 5, 2, 2.0, name, lr_personal=0.01, lr_global=0.02, lr_lambda=0.05)
    w = SPIKE.init(flatten(network), -1.0, 0.6)
    personal = ClientState.start(SPIKE.unconstrain(w), network, name)
    # each row its own leaf, so that λ can have a learning rate of its own
    q64, w64 = ([row.clone().requires_grad_() for row in SPIKE.unconstrain(w).double()] for _ in range(2))
    q_steps, w_steps = (
        optimizer([{"params": rows[:2], "lr": lr}, {"params": rows[2:], "lr": 0.05}])
        for rows, lr in ((q64, 0.01), (w64, 0.02))
    )
    for round_ in range(3):
        from_server = w.clone()
        from_server[0] += 0.05 * round_
        from_server[2] += 0.1 * round_
        with torch.no_grad():
            for leaf, row in zip(w64, SPIKE.unconstrain(from_server), strict=True):
                leaf.copy_(row)
        got = client_update(
            network, SPIKE, personal, from_server, x, y, recipe, seeded(round_), gates=seeded(50 + round_)
        )
        by_hand(
            Rows(q64), Rows(w64), q_steps, w_steps, x.double(), y, recipe, seeded(round_), seeded(50 + round_)
        )
        personal = got.personal
        torch.testing.assert_close(personal.q.double(), torch.stack(q64).detach(), rtol=1e-4, atol=2e-5)
        expected = SPIKE.constrain(torch.stack(w64).detach())
        torch.testing.assert_close(got.w.double(), expected, rtol=1e-4, atol=2e-5)
    assert (personal.q[2] - SPIKE.unconstrain(w)[2]).abs().max() > 0.1  # λ did move


class Rows(list):
    """Separate leaves that are indexed like one tensor and detach together."""

    def detach(self) -> "Rows":
        return Rows([row.detach() for row in self])


@pytest.mark.parametrize("lr_lambda", [0.001, 0.1, 10.0])
def test_lambda_stays_a_probability_whatever_its_learning_rate(lr_lambda: float) -> None:
    network, x, y = problem_of()
    w = SPIKE.init(flatten(network), -1.0, 0.5)
    personal = ClientState.start(SPIKE.unconstrain(w), network, "adam")
    recipe = recipe_of(10, 1, 5, 1, 1.0, lr_lambda=lr_lambda)
    before = w.clone()
    for round_ in range(4):
        updated = client_update(network, SPIKE, personal, w, x, y, recipe, seeded(round_), gates=seeded(9))
        personal, w = updated.personal, updated.w
        assert SPIKE.problem(w) is None and SPIKE.problem(SPIKE.constrain(personal.q)) is None
    # Adam's first steps are of the size of the learning rate: 40 of them, in the logit
    moved = (SPIKE.unconstrain(w)[2] - SPIKE.unconstrain(before)[2]).abs().max().item()
    assert 0.2 * min(40 * lr_lambda, 13.8) < moved <= 1.01 * min(40 * lr_lambda, 13.9)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_lr_lambda_acts_on_lambdas_row_alone(optimizer: str) -> None:
    network, x, y = problem_of()
    w = SPIKE.init(flatten(network), -1.0, 0.5)
    personal = ClientState.start(SPIKE.unconstrain(w), network, optimizer)

    def step(lr_lambda: float) -> Tensor:
        recipe = recipe_of(1, 1, 12, 1, 1.0, optimizer, 0.01, 0.01, lr_lambda)
        updated = client_update(network, SPIKE, personal, w, x, y, recipe, seeded(0), gates=seeded(1))
        return updated.personal.q - personal.q

    slow, same, fast = step(0.001), step(0.01), step(0.04)
    assert torch.equal(slow[:2], fast[:2]) and torch.equal(same[:2], fast[:2]) and same[:2].any()
    torch.testing.assert_close(fast[2], 4 * same[2], rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(fast[2], 40 * slow[2], rtol=1e-5, atol=1e-9)

    # and over several steps the optimiser is two of PyTorch's, one for each learning rate
    v, kind = torch.randn(3, 17, generator=seeded(2)), {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    leaves = v[:2].clone().requires_grad_(), v[2:].clone().requires_grad_()
    reference = kind[optimizer]([{"params": [leaves[0]], "lr": 0.01}, {"params": [leaves[1]], "lr": 0.3}])
    ours = Optimiser(v, OptimizerState.blank(v, optimizer), optimizer, 0.01, 0.3)
    for number in range(5):
        gradient = torch.randn(3, 17, generator=seeded(10 + number))
        leaves[0].grad, leaves[1].grad = gradient[:2].clone(), gradient[2:].clone()
        reference.step()
        ours.step(gradient)
    torch.testing.assert_close(v, torch.cat(leaves).detach(), rtol=1e-5, atol=1e-6)
    assert ours.state().steps == 5


# ---------------------------------------------------------------------- moments


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 3.0, 4.0]])
def test_moments_minimise_the_sum_of_kls(weights: list[float] | None) -> None:
    random = seeded(0)
    uploads = [
        torch.cat([torch.randn(1, 5, generator=random), torch.randn(1, 5, generator=random) - 1, on])
        for on in torch.rand(4, 1, 5, generator=random)
    ]
    w = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)  # in free coordinates
    search = torch.optim.LBFGS(
        [w], max_iter=300, tolerance_grad=1e-11, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def total() -> Tensor:
        search.zero_grad()
        kls = [objective(SPIKE.unconstrain(upload.double()), w) for upload in uploads]
        value = sum(a * kl for a, kl in zip(weights or [1.0] * 4, kls, strict=True))
        value.backward()
        return value

    search.step(total)
    best = SPIKE.constrain(w.detach())
    torch.testing.assert_close(moments(uploads, weights).double(), best, rtol=0, atol=2e-5)


def test_moments_weigh_by_inclusion() -> None:
    # λ = ¾ at μ = 0, λ = ¼ at μ = 4, both σ = 1: μ_w = 1, σ_w² = 1 + ¾·1 + ¼·9 = 4, λ_w = ½
    rho = math.log(math.expm1(1))
    got = moments([torch.tensor([[0.0], [rho], [0.75]]), torch.tensor([[4.0], [rho], [0.25]])])
    assert got[0].item() == pytest.approx(1, rel=1e-6) and got[2].item() == 0.5
    assert softplus(got[1]).item() == pytest.approx(2, rel=1e-6)


def test_moments_of_gaussians_are_as_ever() -> None:
    uploads = [torch.randn(2, 40, generator=seeded(seed)) for seed in range(3)]
    mu = torch.stack([upload[0] for upload in uploads]).double()
    variance = torch.stack([softplus(upload[1].double()).square() for upload in uploads])
    got = moments(uploads)
    torch.testing.assert_close(got[0].double(), mu.mean(0), rtol=1e-6, atol=1e-7)
    expected = (variance + (mu - mu.mean(0)).square()).mean(0)
    torch.testing.assert_close(softplus(got[1].double()).square(), expected, rtol=1e-5, atol=0)
    always_on = moments([torch.cat([upload, torch.ones(1, 40)]) for upload in uploads])
    assert torch.equal(always_on[:2], got) and (always_on[2] == 1).all()
