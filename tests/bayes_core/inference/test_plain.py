"""Ordinary training against torch.optim on an ordinary module."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bayes_core.flat import flatten
from bayes_core.inference.plain import Linear, Proximal, Term, Weights, train_weights
from bayes_core.inference.update import minibatches


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    return network, torch.randn(20, 4), torch.randint(0, 3, (20,))


def by_hand(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    steps: int,
    batch_size: int,
    optimiser,
    seed: int,
    proximal: float = 0,
) -> float:
    """The same batches through an ordinary loop; gives the mean loss."""
    start = [parameter.detach().clone() for parameter in module.parameters()]
    random, losses = torch.Generator().manual_seed(seed), []
    for batch in minibatches(len(x), min(batch_size, len(x)), steps, random):
        loss = cross_entropy(module(x[batch]), y[batch])
        distance = sum(((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True))
        optimiser.zero_grad()
        (loss + proximal / 2 * distance).backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses) / steps


@pytest.mark.parametrize("proximal", [0.0, 2.0])
@pytest.mark.parametrize("batch_size", [8, 100])
def test_sgd_is_that_of_torch(batch_size: int, proximal: float) -> None:
    network, x, y = problem()
    module = copy.deepcopy(network)
    start = Weights.start(flatten(network)[None], network, "sgd")
    got, loss = train_weights(
        network, start, x, y, steps=6, batch_size=batch_size, optimizer="sgd", lr=0.1,
        generator=torch.Generator().manual_seed(1), adam_beta2=0.999,
        terms=[Proximal(None, proximal)],
    )  # fmt: skip
    expected = by_hand(module, x, y, 6, batch_size, torch.optim.SGD(module.parameters(), 0.1), 1, proximal)

    torch.testing.assert_close(got.v[0], flatten(module), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got.buffers, dict(module.named_buffers()), rtol=1e-4, atol=1e-6)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert torch.equal(start.v[0], flatten(network))  # neither the start nor the network has moved
    assert start.buffers["1.num_batches_tracked"] == network.get_buffer("1.num_batches_tracked") == 0


def test_adam_is_that_of_torch_over_two_rounds() -> None:
    network, x, y = problem()
    module = copy.deepcopy(network)
    optimiser = torch.optim.Adam(module.parameters(), 0.01)
    weights = Weights.start(flatten(network)[None], network, "adam")
    for seed in (1, 2):
        weights, _ = train_weights(
            network, weights, x, y, steps=5, batch_size=8, optimizer="adam", lr=0.01,
            generator=torch.Generator().manual_seed(seed), adam_beta2=0.999,
        )  # fmt: skip
        by_hand(module, x, y, 5, 8, optimiser, seed)
    assert weights.optimizer.steps == 10
    # the bias before the batch norm (weights 24 to 29) has no effect: its gradient is rounding noise
    effective = torch.ones(len(flatten(module)), dtype=torch.bool)
    effective[24:30] = False
    torch.testing.assert_close(weights.v[0][effective], flatten(module)[effective], rtol=0, atol=1e-4)


TERMS = {
    "proximal": (lambda c: [Proximal(c, 0.7)], lambda c, theta, start: 0.35 * (theta - c).square().sum()),
    "about the start": (
        lambda c: [Proximal(None, 0.7)],
        lambda c, theta, start: 0.35 * (theta - start).square().sum(),
    ),
    "linear": (lambda c: [Linear(c[None])], lambda c, theta, start: theta @ c),
    "both": (
        lambda c: [Proximal(c[None], 2.0), Linear(c)],
        lambda c, theta, start: (theta - c).square().sum() + theta @ c,
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_terms_are_what_autograd_makes_of_them(name: str) -> None:
    """A linear network with the squared error, so that the whole loss is three lines by hand."""
    random = torch.Generator().manual_seed(3)
    x, y, c = (torch.randn(shape, generator=random) for shape in ((12, 2), (12,), (3,)))
    network = nn.Linear(2, 1)
    terms, by_hand_term = TERMS[name]
    start = Weights.start(flatten(network)[None], network, "sgd")
    iterates: list[Tensor] = []
    got, _ = train_weights(
        network, start, x, y, steps=5, batch_size=12, optimizer="sgd", lr=0.1,
        generator=torch.Generator().manual_seed(1), adam_beta2=0.999, terms=terms(c),
        likelihood=lambda output, y: (output[:, 0] - y).square().sum(),
        after_step=lambda step, v: iterates.append(torch.cat([torch.tensor([float(step)]), v[0]])),
    )  # fmt: skip
    theta = start.v[0].clone().requires_grad_()
    for step in range(1, 6):
        loss = (x @ theta[:2] + theta[2] - y).square().mean() + by_hand_term(c, theta, start.v[0])
        (gradient,) = torch.autograd.grad(loss, theta)
        theta = (theta - 0.1 * gradient).detach().requires_grad_()
        assert iterates[step - 1][0] == step
        torch.testing.assert_close(iterates[step - 1][1:], theta.detach(), rtol=1e-5, atol=1e-6)
    assert torch.equal(got.v[0], iterates[-1][1:])


def test_a_strong_proximal_term_holds_the_weights_at_any_anchor() -> None:
    network, x, y = problem()
    start = Weights.start(flatten(network)[None], network, "sgd")
    anchor = torch.ones_like(start.v)
    terms: list[Term] = [Proximal(anchor, 100.0)]
    got, _ = train_weights(
        network, start, x, y, steps=50, batch_size=20, optimizer="sgd", lr=0.01,
        generator=torch.Generator().manual_seed(1), adam_beta2=0.999, terms=terms,
    )  # fmt: skip
    assert (got.v - anchor).abs().max() < 0.02 and (start.v - anchor).abs().max() > 0.5


def test_weights_are_stored_under_their_names_and_come_back() -> None:
    network, x, y = problem()
    weights, _ = train_weights(
        network, Weights.start(flatten(network)[None], network, "adam"), x, y, steps=3, batch_size=8,
        optimizer="adam", lr=0.01, generator=torch.Generator().manual_seed(1), adam_beta2=0.999,
    )  # fmt: skip
    stored = weights.state_dict()
    assert list(stored)[:3] == ["theta", "moments", "steps"] and "buffer.1.running_mean" in stored
    assert stored["theta"] is weights.v and stored["steps"].shape == () and stored["steps"].item() == 3
    again = Weights.load_state_dict(stored | {"temperature": torch.tensor(1.0)})
    assert torch.equal(again.v, weights.v) and again.optimizer == weights.optimizer
    assert again.buffers.keys() == weights.buffers.keys()
