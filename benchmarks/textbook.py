"""The step as public code writes it: Bayesian layers, torch.distributions, autograd through everything, Adam."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn.functional import conv2d, cross_entropy, linear, softplus

from bayes_core import Recipe
from bayes_core.inference.update import minibatches

Pair = tuple["BayesianParameter", "BayesianParameter"]


class BayesianParameter(nn.Module):
    """A distribution over one tensor of weights: Gaussian, or with gates spike-and-slab."""

    def __init__(self, start: Tensor, rho: float, gated: bool, temperature: float) -> None:
        super().__init__()
        self.mu = nn.Parameter(start.detach().clone())
        self.rho = nn.Parameter(torch.full_like(start, rho))
        self.logit = nn.Parameter(torch.zeros_like(start)) if gated else None
        self.temperature = temperature

    def sample(self) -> Tensor:
        slab = Normal(self.mu, softplus(self.rho)).rsample()
        if self.logit is None:
            return slab
        eta = self.logit + torch.rand_like(self.logit).clamp(1e-7, 1 - 1e-7).logit()
        soft = torch.sigmoid(eta / self.temperature)
        return ((eta > 0).float() - soft.detach() + soft) * slab

    def detached(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.mu.detach(), self.rho.detach(), None if self.logit is None else self.logit.detach()


class BayesianLayer(nn.Module):
    """A linear or convolution layer that draws its weights in every forward pass."""

    def __init__(self, plain: nn.Linear | nn.Conv2d, rho: float, gated: bool, temperature: float) -> None:
        super().__init__()
        assert plain.bias is not None
        self.weight = BayesianParameter(plain.weight, rho, gated, temperature)
        self.bias = BayesianParameter(plain.bias, rho, gated, temperature)
        self.padding = plain.padding if isinstance(plain, nn.Conv2d) else None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.sample(), self.bias.sample()
        return (
            linear(x, weight, bias) if self.padding is None else conv2d(x, weight, bias, padding=self.padding)
        )


def bayesian(
    network: nn.Sequential, gated: bool, rho: float = -2.5, temperature: float = 0.5
) -> nn.Sequential:
    """The same network of Bayesian layers."""
    return nn.Sequential(
        *(
            BayesianLayer(layer, rho, gated, temperature)
            if isinstance(layer, nn.Linear | nn.Conv2d)
            else layer
            for layer in network
        )
    )


def distributions(model: nn.Module) -> Iterator[BayesianParameter]:
    return (module for module in model.modules() if isinstance(module, BayesianParameter))


def kl(q: tuple[Tensor, Tensor, Tensor | None], w: tuple[Tensor, Tensor, Tensor | None]) -> Tensor:
    slab = kl_divergence(Normal(q[0], softplus(q[1])), Normal(w[0], softplus(w[1])))
    if q[2] is None or w[2] is None:
        return slab.sum()
    gates = kl_divergence(Bernoulli(logits=q[2]), Bernoulli(logits=w[2]))
    return (gates + q[2].sigmoid() * slab).sum()


def client_round(
    network: nn.Sequential, gated: bool, x: Tensor, y: Tensor, recipe: Recipe
) -> Callable[[], None]:
    """A call that takes R × (step on q, step on w) as the paper's box says."""
    n, b = len(x), recipe.batch_size
    q, w = bayesian(network, gated), bayesian(network, gated)
    pairs: list[Pair] = list(zip(distributions(q), distributions(w), strict=True))
    q_optimiser = torch.optim.Adam(q.parameters(), lr=recipe.lr_personal)
    w_optimiser = torch.optim.Adam(w.parameters(), lr=recipe.lr_global)
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        for batch in minibatches(n, b, recipe.local_steps, generator):
            nll = cross_entropy(q(x[batch]), y[batch], reduction="sum")
            prior = torch.stack([kl((a.mu, a.rho, a.logit), b.detached()) for a, b in pairs]).sum()
            q_optimiser.zero_grad()
            (n / b * nll + recipe.zeta * prior).backward()  # type: ignore[no-untyped-call]
            q_optimiser.step()
            w_optimiser.zero_grad()
            torch.stack([kl(a.detached(), (b.mu, b.rho, b.logit)) for a, b in pairs]).sum().backward()  # type: ignore[no-untyped-call]
            w_optimiser.step()

    return run
