"""λ in float32: gradients that keep their digits, since Adam makes full steps of the smallest, and λ near 1."""

import pytest
import torch
from recipes import recipe_of
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import logsigmoid, softplus

from bayes_core import ClientState, SpikeSlab, build_family, client_update
from bayes_core.families.spike_slab import difference_of_gates
from bayes_core.fast.fused import FusedSteps
from bayes_core.flat import flatten
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.inference.update import PlainSteps, Steps, minibatches

STEPS: dict[str, type[Steps]] = {"in C": FusedSteps, "plain": PlainSteps}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pairs_of_logits() -> Tensor:
    """Near and far ones, from gates that are surely off to such that are surely on."""
    middles = torch.linspace(-16, 16, 33)[:, None]
    gaps = 10.0 ** torch.arange(-7, 2) * torch.tensor([[1.0], [-1.0]])
    a, b = torch.broadcast_tensors(middles, middles + gaps.view(1, -1))
    return torch.stack([a.reshape(-1), b.reshape(-1)])


def exact(a: Tensor, b: Tensor) -> Tensor:
    """sigmoid(a) − sigmoid(b) through float64, with 1 − sigmoid where both are near 1."""
    a, b = a.double(), b.double()
    gap = torch.expm1(-(a - b).abs()).neg()
    return (a - b).sign() * gap * torch.maximum(a, b).sigmoid() * (-torch.minimum(a, b)).sigmoid()


def difference(a: Tensor, b: Tensor) -> Tensor:
    return difference_of_gates(*(SpikeSlab().parts(torch.stack([one, one, one])) for one in (a, b)))


def test_the_difference_of_two_lambdas_has_all_its_digits() -> None:
    a, b = pairs_of_logits()
    got, expected = difference(a, b), exact(a, b)
    assert (got / expected.where(a != b, 1) - 1)[a != b].abs().max() < 1e-6
    torch.testing.assert_close(expected, a.double().sigmoid() - b.double().sigmoid(), rtol=1e-3, atol=1e-15)
    far = torch.tensor([500.0, -500.0])
    assert difference(far, far.flip(0)).tolist() == [1.0, -1.0]


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("by", STEPS)
def test_so_has_the_step_on_w(by: str) -> None:
    logits = pairs_of_logits()
    q, w = (
        torch.cat([torch.zeros(1, len(one)), torch.full((1, len(one)), -2.5), one[None]]) for one in logits
    )
    still, moving = (Optimiser(v, OptimizerState.blank(v, "adam"), "adam", 0.0) for v in (q, w))
    steps = STEPS[by](SpikeSlab(), still, moving, zeta=1.0)
    steps.draw(seeded(1), seeded(2))
    steps.add([torch.zeros_like(logits[0])] * 2)
    steps.step_q()
    steps.step_w()
    got, expected = moving.moments[0, 2] / 0.1, exact(w[2], q[2])
    moved = w[2] != q[2]
    assert (got[moved] / expected[moved] - 1).abs().max() < 3e-6 and not got[~moved].any()


TAU, WEIGHTS, N, B = 0.1, 785, 100, 50


def kl(q: list[Tensor], w: list[Tensor]) -> Tensor:
    """In a form that autograd, too, differentiates without cancellation."""
    sigma_q, sigma_w = softplus(q[1]), softplus(w[1])
    excess = (sigma_q - sigma_w) / sigma_w
    slab = excess * (1 + excess / 2) - torch.log1p(excess) + ((q[0] - w[0]) / sigma_w).square() / 2
    on, off = torch.sigmoid(q[2]), torch.sigmoid(-q[2])
    gate = on * (logsigmoid(q[2]) - logsigmoid(w[2])) + off * (logsigmoid(-q[2]) - logsigmoid(-w[2]))
    return (gate + on * slab).sum()


def twenty_steps_in_float64(start: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """sFedBayes' box through autograd; the logits of w."""
    random, gates = seeded(1), seeded(2)
    q, w = ([row.clone().requires_grad_() for row in start.double()] for _ in range(2))
    q_steps, w_steps = (
        torch.optim.Adam(
            [{"params": rows[:2], "lr": 0.001}, {"params": rows[2:], "lr": 0.1}], betas=(0.9, 0.99)
        )
        for rows in (q, w)
    )
    for batch in minibatches(N, B, 20, random):
        g = torch.empty(WEIGHTS).normal_(generator=random).double()
        logit_u = torch.empty(WEIGHTS).uniform_(1e-7, 1 - 1e-7, generator=gates).double().logit()
        nll = torch.zeros((), dtype=torch.float64)
        for sign, half in ((1, batch[: B // 2]), (-1, batch[B // 2 :])):
            eta = q[2] + sign * logit_u
            soft = torch.sigmoid(-eta.detach().abs() / TAU)
            gate = (eta > 0).double() + (eta - eta.detach()) * soft * (1 - soft) / TAU
            theta = gate * (q[0] + softplus(q[1]) * sign * g)
            logits = x[half].double() @ theta[:780].view(5, 156).T + theta[780:]
            nll = nll - Categorical(logits=logits).log_prob(y[half]).sum()
        q_steps.zero_grad()
        (N / B * nll + 10 * kl(q, [row.detach() for row in w])).backward()
        q_steps.step()
        w_steps.zero_grad()
        kl([row.detach() for row in q], w).backward()
        w_steps.step()
    return w[2].detach()


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("compiled", [True, False])
def test_twenty_steps_at_a_low_temperature_are_those_of_float64(compiled: bool) -> None:
    """Of 785 logits of w some 220 were off by more than 0.01 with λ_w − λ_q as a difference; now some 30 are."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(156, 5))
    x, y = torch.randn(N, 156), torch.randint(0, 5, (N,))
    family = SpikeSlab(TAU)
    w = family.init(flatten(network), -2.5, 0.5)
    recipe = recipe_of(20, 1, B, 1, 10.0, "adam", 0.001, 0.001, 0.1, adam_beta2=0.99, compile=compiled)
    personal = ClientState.start(family.unconstrain(w), network, "adam")
    got = client_update(network, family, personal, w, x, y, recipe, seeded(1), gates=seeded(2)).w[2]
    off = (got.double().logit() - twenty_steps_in_float64(family.unconstrain(w), x, y)).abs() > 0.01
    assert int(off.sum()) < 80


@pytest.mark.parametrize("lambda_init", [0.99999999, 1 - 1e-7, 1e-12])
def test_a_start_that_float32_would_round_to_a_sure_gate(lambda_init: float) -> None:
    family = build_family("spike-slab", 0.5, lambda_init)
    w = family.init(torch.zeros(4), -2.5, lambda_init)
    assert family.gated and w[2].min() > 0 and w[2].max() < 1
    moved = torch.cat([w[:2], torch.full((1, 4), 0.5)])
    assert family.kl(moved, w).isfinite() and family.kl(w, moved).isfinite()
    assert family.problem(w) is None
    torch.testing.assert_close(family.constrain(family.unconstrain(w)), w)


def test_a_start_of_one_has_no_gate_and_others_are_as_they_were() -> None:
    assert not build_family("spike-slab", 0.5, 1.0).gated
    assert (SpikeSlab(gated=False).init(torch.zeros(4), -2.5, 1.0)[2] == 1).all()
    for lambda_init in (0.3, 0.5, 0.7, 1e-6, 0.999):
        assert torch.equal(
            SpikeSlab().init(torch.zeros(4), -2.5, lambda_init)[2], torch.full((4,), lambda_init)
        )
