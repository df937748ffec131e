"""ClientUpdate against the paper's objectives in torch.distributions, and against known posteriors."""

import copy
import math
from dataclasses import asdict, replace

import pytest
import torch
from recipes import recipe_of
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn.functional import cross_entropy, softplus

from bayes_core.families import Gaussian, Point
from bayes_core.flat import buffers_of, flatten, shapes_of
from bayes_core.inference.optimisers import OptimizerState
from bayes_core.inference.plain import nll_gradient
from bayes_core.inference.recipe import Recipe
from bayes_core.inference.update import ClientState, client_update, minibatches

GAUSSIAN, POINT = Gaussian(), Point()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_problem() -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """A network of 26 weights, 12 examples, and q ≠ w."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))
    w = GAUSSIAN.init(flatten(network), -1.0)
    return network, x, y, w + 0.1 * torch.randn_like(w), w


def personal_of(q: Tensor, network: nn.Module, optimizer: str) -> ClientState:
    return replace(ClientState.start(q, network, optimizer), q=q.clone())


def normal(v: Tensor) -> Normal:
    return Normal(v[0], softplus(v[1]))


def by_hand(q, w, q_steps, w_steps, x, y, recipe: Recipe, random: torch.Generator) -> float:
    """The paper's box through autograd, in float64, on leaves q and w; gives the loss."""
    n, b, losses = len(x), min(recipe.batch_size, len(x)), []
    for batch in minibatches(n, b, recipe.local_steps, random):
        for _ in range(recipe.personal_steps):
            nlls = []
            for _ in range(recipe.mc_samples):
                g = torch.empty(26).normal_(generator=random).double()
                for sign, half in ((1, batch[: (b + 1) // 2]), (-1, batch[(b + 1) // 2 :])):
                    theta = q[0] + sign * softplus(q[1]) * g
                    hidden = torch.tanh(x[half] @ theta[:12].view(4, 3).T + theta[12:16])
                    logits = hidden @ theta[16:24].view(2, 4).T + theta[24:]
                    nlls.append(-Categorical(logits=logits).log_prob(y[half]).sum())
            prior = kl_divergence(normal(q), normal(w.detach())).sum()
            q_steps.zero_grad()
            (n / b * sum(nlls) / recipe.mc_samples + recipe.zeta * prior).backward()
            q_steps.step()
            losses += [sum(nll.item() for nll in nlls) / b / recipe.mc_samples]
        w_steps.zero_grad()
        kl_divergence(normal(q.detach()), normal(w)).sum().backward()
        w_steps.step()
    return sum(losses) / len(losses)


@pytest.mark.parametrize("mc_samples", [1, 3])
@pytest.mark.parametrize("personal_steps", [1, 2])
def test_one_sgd_step_is_the_papers_box(mc_samples: int, personal_steps: int) -> None:
    network, x, y, q, w = small_problem()
    recipe = recipe_of(1, personal_steps, 5, mc_samples, 2.0, "sgd", lr_personal=0.02, lr_global=0.05)
    got = client_update(network, GAUSSIAN, personal_of(q, network, "sgd"), w, x, y, recipe, seeded(3))

    q64, w64 = q.double().requires_grad_(), w.double().requires_grad_()
    q_steps, w_steps = torch.optim.SGD([q64], lr=0.02), torch.optim.SGD([w64], lr=0.05)
    loss = by_hand(q64, w64, q_steps, w_steps, x.double(), y, recipe, seeded(3))
    torch.testing.assert_close(got.personal.q.double(), q64.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got.w.double(), w64.detach(), rtol=1e-5, atol=1e-6)
    assert got.loss == pytest.approx(loss, rel=1e-5)
    assert (got.personal.q - q).abs().max() > 0.05 and (got.w - w).abs().max() > 0.01  # it did move


def test_adam_keeps_its_moments_over_rounds() -> None:
    network, x, y, q, w = small_problem()
    recipe = recipe_of(4, 2, 5, 2, 2.0, "adam", lr_personal=0.01, lr_global=0.02)
    personal = personal_of(q, network, "adam")
    q64, w64 = q.double().requires_grad_(), w.double().requires_grad_()
    q_steps, w_steps = torch.optim.Adam([q64], lr=0.01), torch.optim.Adam([w64], lr=0.02)
    for round_ in range(3):
        from_server = w + 0.05 * round_  # a new w every round; w's moments go on all the same
        with torch.no_grad():
            w64.copy_(from_server)
        got = client_update(network, GAUSSIAN, personal, from_server, x, y, recipe, seeded(round_))
        by_hand(q64, w64, q_steps, w_steps, x.double(), y, recipe, seeded(round_))
        personal = got.personal
        torch.testing.assert_close(personal.q.double(), q64.detach(), rtol=0, atol=2e-5)
        torch.testing.assert_close(got.w.double(), w64.detach(), rtol=0, atol=2e-5)
    assert (personal.q_optimizer.steps, personal.w_optimizer.steps) == (24, 12)


class Means(nn.Module):
    """Its output is its only parameter: 200 independent unknown means at once."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(200))

    def forward(self, x: Tensor) -> Tensor:
        return self.theta.expand(len(x), -1)


@pytest.mark.parametrize("zeta", [1.0, 4.0])
def test_q_finds_the_posterior_of_a_gaussian_mean(zeta: float) -> None:
    # y_j ~ N(θ, s²), prior w = N(m, t²). Ω is least for q ∝ w·p(y|θ)^(1/ζ), which is Gaussian again:
    # precision 1/t² + n/(ζs²), and a mean weighted by these two.
    n, s, m, t = 20, 1.0, 1.0, 0.5
    y = s * torch.randn(n, 200, generator=seeded(0))
    precision = 1 / t**2 + n / (zeta * s**2)
    mean = (m / t**2 + y.sum(0) / (zeta * s**2)) / precision

    network = Means()
    w = GAUSSIAN.init(torch.full((200,), m), math.log(math.expm1(t)))
    personal = ClientState.start(w, network, "sgd")
    for lr, steps in ((0.01 / zeta, 700), (0.002 / zeta, 300)):
        recipe = recipe_of(steps, 1, n, 2, zeta, "sgd", lr_personal=lr, lr_global=0.0)
        updated = client_update(
            network, GAUSSIAN, personal, w, torch.zeros(n, 1), y, recipe, seeded(steps),
            lambda output, y: 0.5 * ((output - y) / s).square().sum(),
        )  # fmt: skip
        personal = updated.personal
    error = (personal.q[0] - mean) * math.sqrt(precision)  # in posterior standard deviations
    ratio = softplus(personal.q[1]) * math.sqrt(precision)
    # each coordinate keeps the last steps' Monte-Carlo noise (below 0.15 sd); their mean has 1/√200 of it
    assert abs(error.mean()) < 0.04 and error.std() < 0.15
    assert abs(ratio.mean() - 1) < 0.02 and ratio.std() < 0.1
    assert torch.equal(updated.w, w)


class Everything(nn.Module):
    """Convolution, batch norm, dropout, and two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.dropout = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.3)
        self.one, self.two, self.out = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        return self.out(torch.relu(self.two(torch.relu(self.one(x)))))


def images() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 1, 6, 6, generator=seeded(0)), torch.arange(8) % 2


def test_nll_gradient_is_that_of_the_plain_module() -> None:
    torch.manual_seed(0)
    network = Everything()
    x, y = images()
    buffers = buffers_of(network)
    torch.manual_seed(1)  # dropout's stream
    value, gradient = nll_gradient(network, shapes_of(network), flatten(network), buffers, x, y)

    twin = copy.deepcopy(network)
    torch.manual_seed(1)
    loss = cross_entropy(twin(x), y, reduction="sum")
    loss.backward()
    torch.testing.assert_close(value, loss.detach())
    torch.testing.assert_close(gradient, torch.cat([p.grad.reshape(-1) for p in twin.parameters()]))
    torch.testing.assert_close(buffers, dict(twin.named_buffers()))
    assert all(parameter.grad is None for parameter in network.parameters())


def test_any_module_works_and_its_own_tensors_stay_untouched() -> None:
    torch.manual_seed(0)
    network = Everything()
    untouched = copy.deepcopy(network.state_dict())
    w = GAUSSIAN.init(flatten(network))
    assert w.shape[1] == 3 * 9 + 3 + 2 * 3 + 9 + 2 * 3 + 3 * 2 + 2  # the shared 3×3 weight counts once
    personal = ClientState.start(w, network, "adam")
    got = client_update(network, GAUSSIAN, personal, w, *images(), recipe_of(2, 2, 4, 3), seeded(0))

    assert got.personal.q.isfinite().all() and got.w.isfinite().all()
    assert not torch.equal(got.personal.q, w)
    torch.testing.assert_close(network.state_dict(), untouched, rtol=0, atol=0)
    torch.testing.assert_close(personal.buffers, buffers_of(network), rtol=0, atol=0)
    assert got.personal.buffers["norm.num_batches_tracked"] == 2 * 2 * 3 * 2  # two forward passes a draw
    assert not torch.equal(got.personal.buffers["norm.running_mean"], personal.buffers["norm.running_mean"])


@pytest.mark.parametrize("batch_size", [1, 2])
def test_batches_are_scaled_to_the_whole_data(batch_size: int) -> None:
    """With σ ≈ 0 and ζ = 0 a step is −lr·(n/b)·G: its mean over all batches is the full-data step."""
    torch.manual_seed(0)
    network = nn.Linear(2, 2)
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    w = GAUSSIAN.init(flatten(network), -20.0)
    personal = ClientState.start(w, network, "sgd")

    def step(size: int, seed: int) -> Tensor:
        recipe = recipe_of(1, 1, size, 1, 0.0, "sgd", lr_personal=1.0)
        return client_update(network, GAUSSIAN, personal, w, x, y, recipe, seeded(seed)).personal.q[0] - w[0]

    cross_entropy(network(x), y, reduction="sum").backward()
    full = -torch.cat([parameter.grad.reshape(-1) for parameter in network.parameters()])
    torch.testing.assert_close(step(4, 0), full, rtol=1e-4, atol=1e-5)

    steps = {tuple(round(value, 4) for value in step(batch_size, seed).tolist()) for seed in range(80)}
    assert len(steps) == math.comb(4, batch_size)  # every batch came up
    torch.testing.assert_close(torch.tensor(list(steps)).mean(0), full, rtol=1e-3, atol=2e-4)


def test_a_batch_size_beyond_the_data_takes_all_of_it() -> None:
    network, x, y, q, w = small_problem()
    personal = personal_of(q, network, "sgd")
    whole, beyond = (
        client_update(network, GAUSSIAN, personal, w, x, y, recipe_of(3, 1, b, optimizer="sgd"), seeded(0))
        for b in (12, 1000)
    )
    assert torch.equal(whole.personal.q, beyond.personal.q) and torch.equal(whole.w, beyond.w)
    assert whole.loss == beyond.loss


def test_same_generator_same_result_and_inputs_unchanged() -> None:
    network, x, y, q, w = small_problem()
    personal = personal_of(q, network, "adam")
    personal = replace(personal, q_optimizer=OptimizerState(torch.rand(2, 2, 26), 7), buffers={})
    before = copy.deepcopy((personal, w, x, y))
    first = client_update(network, GAUSSIAN, personal, w, x, y, recipe_of(3, batch_size=4), seeded(1))
    torch.manual_seed(99)
    again = client_update(network, GAUSSIAN, personal, w, x, y, recipe_of(3, batch_size=4), seeded(1))
    other = client_update(network, GAUSSIAN, personal, w, x, y, recipe_of(3, batch_size=4), seeded(2))

    assert torch.equal(first.personal.q, again.personal.q) and torch.equal(first.w, again.w)
    assert torch.equal(first.personal.q_optimizer.moments, again.personal.q_optimizer.moments)
    assert not torch.equal(first.personal.q, other.personal.q)
    for now, then in zip((personal.q, w, x, y), (before[0].q, *before[1:]), strict=True):
        assert torch.equal(now, then)
    for now, then in (
        (personal.q_optimizer, before[0].q_optimizer),
        (personal.w_optimizer, before[0].w_optimizer),
    ):
        assert torch.equal(now.moments, then.moments) and now.steps == then.steps


def test_a_weight_that_no_data_touch_keeps_its_distribution() -> None:
    """A pixel that is always 0: no likelihood gradient, and q = w, so Ω and Ω_w are at their minimum."""
    torch.manual_seed(0)
    network = nn.Linear(3, 2, bias=False)
    x, y = torch.randn(10, 3), torch.arange(10) % 2
    x[:, 2] = 0
    w = GAUSSIAN.init(flatten(network))
    personal = ClientState.start(w, network, "adam")
    got = client_update(network, GAUSSIAN, personal, w, x, y, recipe_of(), seeded(0))
    for v in (got.personal.q, got.w):
        torch.testing.assert_close(v.view(2, 2, 3)[:, :, 2], w.view(2, 2, 3)[:, :, 2], rtol=0, atol=1e-6)


def test_a_state_is_stored_under_its_names_and_comes_back() -> None:
    torch.manual_seed(0)
    network = Everything()
    w = GAUSSIAN.init(flatten(network))
    personal = ClientState.start(w, network, "adam")
    kept = client_update(network, GAUSSIAN, personal, w, *images(), recipe_of(2, 3, 4), seeded(0)).personal
    stored = kept.state_dict()
    buffers = {f"buffer.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert stored.keys() == {"q", "q_moments", "w_moments", "steps"} | buffers
    assert stored["steps"].tolist() == [6, 2] and stored["q_moments"].shape == (2, *w.shape)
    again = ClientState.load_state_dict(stored | {"temperature": torch.tensor(1.0)})
    assert torch.equal(again.q, kept.q) and again.buffers.keys() == kept.buffers.keys()
    assert (again.q_optimizer, again.w_optimizer) == (kept.q_optimizer, kept.w_optimizer)


def test_between_points_the_box_is_a_proximal_one() -> None:
    """q: θ − η₁·(∂NLL + ζ(θ − w)); w: w − η₂·(w − θ)."""
    torch.manual_seed(0)
    network = nn.Linear(3, 2, bias=False)
    x, y = torch.randn(12, 3), torch.arange(12) % 2
    w = POINT.init(flatten(network))
    q = w + 0.5
    personal = personal_of(q, network, "sgd")
    recipe = recipe_of(1, 1, 12, 1, 2.0, "sgd", lr_personal=0.01, lr_global=0.1)
    got = client_update(network, POINT, personal, w, x, y, recipe, seeded(0))
    theta = q[0].clone().requires_grad_()
    cross_entropy(x @ theta.view(2, 3).T, y, reduction="sum").backward()
    expected = q[0] - 0.01 * (theta.grad + 2.0 * 0.5)
    torch.testing.assert_close(got.personal.q[0], expected)
    torch.testing.assert_close(got.w[0], w[0] - 0.1 * (w[0] - expected))


def test_a_recipe_takes_settings_by_their_keys() -> None:
    usual = recipe_of(7, compile=True)
    settings = {name.replace("_", "-"): value for name, value in asdict(usual).items()}
    assert Recipe.of(settings) == usual
    assert Recipe.of(settings | {"compile": "auto", "rounds": 3}).compile is None
    with pytest.raises(TypeError, match="missing"):
        Recipe(local_steps=20)  # type: ignore[call-arg]
