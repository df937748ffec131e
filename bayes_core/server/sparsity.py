"""A size one can ask for: one shift of all of the server's logits λ towards a given share of weights that are on.

Nothing in sFedBayes pulls towards a particular sparsity: λ moves away from its initial value only as far as KL and
likelihood push it. A target is a hyper-prior on the server's λ: after each aggregation the same number is added to
every logit, so that the mean of λ comes to the target. Which weights are on stays the clients' choice, how many is
the user's. Clients follow through KL(q ‖ w).
"""

import torch
from torch import Tensor

STEP = 0.1  # the most by which logits move in one round: gates that close faster than clients learn cost accuracy
HALVINGS = 20


def shift(v: Tensor, target: float, step: float = STEP) -> Tensor:
    """The spike-and-slab distribution (μ, ρ, λ) with λ moved by at most one step towards a mean of `target`."""
    logit = torch.logit(v[2].double(), eps=1e-6)
    low, high = -step, step
    for _ in range(HALVINGS):  # the mean rises with the shift: bisection finds it, or the end it lies beyond
        middle = (low + high) / 2
        if torch.sigmoid(logit + middle).mean() > target:
            high = middle
        else:
            low = middle
    moved = torch.sigmoid(logit + (low + high) / 2).clamp(1e-6, 1 - 1e-6)
    return torch.cat([v[:2], moved.to(v.dtype)[None]])
