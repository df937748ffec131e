"""ClientUpdate: the R alternating steps of the paper's boxes, for any `nn.Module`.

Objective of the personal distribution q, with the localized global distribution w held fixed:

    Ω(q) = (n/b)·(1/a)·Σ_l −log p(batch | θ_l) + ζ·KL(q ‖ w),   θ_l ~ q

and of w, with q held fixed: Ω_w(w) = KL(q ‖ w). The likelihood is the sum over the batch scaled by n/b.
Different from the paper: `personal_steps` may repeat the step on q before the step on w; and a sample of the
weights is used with its noise as drawn for one half of the batch, and mirrored (−g) for the other. Both are draws
from q and the gradient stays unbiased, but what the noise adds to first order cancels.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayes_core.families import Family
from bayes_core.fast.compiled import NotCompiled
from bayes_core.fast.fused import FusedSteps
from bayes_core.fast.mirrored import SPLIT, mirrored_pair
from bayes_core.fast.steps import PlainSteps, Steps
from bayes_core.flat import Shapes, buffers_of, unflatten
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.likelihoods import Likelihood, categorical


@dataclass(frozen=True)
class Recipe:
    """The hyper-parameters of ClientUpdate, under the paper's names."""

    local_steps: int = 20  # R
    personal_steps: int = 1
    batch_size: int = 100  # b
    mc_samples: int = 1  # a
    zeta: float = 10.0
    optimizer: str = "adam"
    lr_personal: float = 0.001  # η₁
    lr_global: float = 0.001  # η₂
    lr_lambda: float = 0.001  # of λ's logit, in q and in w
    adam_beta2: float = 0.999
    compile: bool | None = None  # the update as one compiled pass; None: where that can be had


@dataclass(frozen=True)
class ClientState:
    """What a client keeps from round to round, and never sends."""

    q: Tensor  # in the family's unconstrained coordinates
    q_optimizer: OptimizerState
    w_optimizer: OptimizerState
    buffers: dict[str, Tensor]  # batch-norm statistics and the like; empty only if the network has none

    @classmethod
    def start(cls, w: Tensor, network: nn.Module, optimizer: str) -> "ClientState":
        """A client without a past begins at the global distribution (in unconstrained coordinates)."""
        blank = OptimizerState.blank(w, optimizer)
        return cls(w.clone(), blank, blank, buffers_of(network))


@dataclass(frozen=True)
class Updated:
    """The result of one client round."""

    personal: ClientState
    w: Tensor  # the localized global distribution: the only thing uploaded
    loss: float  # mean −log p of a training example over the round


def client_update(
    network: nn.Module,
    family: Family,
    personal: ClientState,
    w: Tensor,
    x: Tensor,
    y: Tensor,
    recipe: Recipe,
    generator: torch.Generator,
    likelihood: Likelihood = categorical,
    gates: torch.Generator | None = None,
) -> Updated:
    """R × (step on q, step on w), from `personal` and the server's `w`; its inputs are not changed.

    The network is left in training mode. One with dropout draws from torch's global stream.
    """
    n = len(x)
    b = min(recipe.batch_size, n)
    buffers = {name: buffer.clone() for name, buffer in personal.buffers.items()}
    q, w = personal.q.clone(), family.unconstrain(w).clone()
    optimiser = partial(Optimiser, lr_third=recipe.lr_lambda, beta2=recipe.adam_beta2)
    q_optimiser = optimiser(q, personal.q_optimizer, recipe.optimizer, recipe.lr_personal)
    w_optimiser = optimiser(w, personal.w_optimizer, recipe.optimizer, recipe.lr_global)
    loss = torch.zeros((), device=q.device)

    steps = _steps(family, q_optimiser, w_optimiser, recipe)
    network.train()
    pair = mirrored_pair(network, steps.thetas, buffers, x[:b])
    weight = 0.5 if b < SPLIT else 1.0  # too few to split: both draws see all
    scale = torch.full_like(loss, weight * n / b / recipe.mc_samples)
    for batch in minibatches(n, b, recipe.local_steps, generator):
        x_batch, y_batch = x.index_select(0, batch), y.index_select(0, batch)
        for repeat in range(recipe.personal_steps):
            for sample in range(recipe.mc_samples):
                steps.draw(generator, gates)
                value, gradients = pair.nll_gradients(x_batch, y_batch, scale, likelihood)
                loss += value
                if sample < recipe.mc_samples - 1:
                    steps.add(gradients)
            steps.step(gradients, both=repeat == recipe.personal_steps - 1)

    examples = recipe.local_steps * recipe.personal_steps * recipe.mc_samples * b / weight
    kept = ClientState(q, q_optimiser.state(), w_optimiser.state(), buffers)
    return Updated(kept, family.constrain(w), float(loss) / examples)


def _steps(family: Family, q_optimiser: Optimiser, w_optimiser: Optimiser, recipe: Recipe) -> Steps:
    if recipe.compile is not False:
        try:
            return FusedSteps(family, q_optimiser, w_optimiser, recipe.zeta)
        except NotCompiled as reason:
            if recipe.compile:
                _warn(f"compile = true, but plain PyTorch takes the steps: {reason}.")
    return PlainSteps(family, q_optimiser, w_optimiser, recipe.zeta)


@cache
def _warn(sentence: str) -> None:
    """Once in a process."""
    logging.getLogger(__name__).warning(sentence)


def minibatches(n: int, b: int, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """`count` batches of b ≤ n indices: passes over the shuffled data, one after the other.

    Every example is seen equally often (to within one), which independent draws do not give. A batch on the
    border of two passes may hold an example twice.
    """
    passes = -(-count * b // n)
    order = torch.cat(
        [torch.randperm(n, generator=generator, device=generator.device) for _ in range(passes)]
    )
    for start in range(0, count * b, b):
        yield order[start : start + b]


def nll_gradient(
    network: nn.Module,
    shapes: Shapes,
    theta: Tensor,
    buffers: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood = categorical,
) -> tuple[Tensor, Tensor]:
    """−log p of a batch under the plain network with weights θ, and its gradient G, shape (T,).

    Buffers are updated in place, as a training network does.
    """
    leaves = {name: view.detach().requires_grad_() for name, view in unflatten(theta, shapes).items()}
    with torch.enable_grad():
        value = likelihood(functional_call(network, (leaves, dict(buffers)), (x,)), y)
        gradients = torch.autograd.grad(
            value, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
    return value.detach(), torch.cat([part.reshape(-1) for part in gradients])
