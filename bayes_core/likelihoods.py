"""−log p(y | network's outputs), summed over a batch.

The sum is scaled by n/b in `client_update`, once: nowhere else is a loss averaged.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad

Likelihood = Callable[[Tensor, Tensor], Tensor]
SUM, NO_LABEL = 2, -100  # PyTorch's codes


def categorical(logits: Tensor, y: Tensor) -> Tensor:
    """Classification."""
    return cross_entropy(logits, y, reduction="sum")


def labels(logits: Tensor, y: Tensor) -> Tensor:
    """Several labels an example, y (n, L) of 0 and 1: two logits for each of n·L (see `ManyLabels` in networks.py)."""
    return cross_entropy(logits, y.reshape(-1), reduction="sum")


def balanced_labels(y: Tensor) -> Likelihood:
    """Likewise, a label counting as much where it is there as where it is not (unless it is always one of both)."""
    there = y.sum(0)
    counts = torch.stack([len(y) - there, there], -1)
    both = (counts > 0).all(-1, keepdim=True)
    weights = torch.where(both, len(y) / (2 * counts.clamp_min(1)), 1.0).float()  # (L, 2)

    def weighted(logits: Tensor, y: Tensor) -> Tensor:
        each = cross_entropy(logits, y.reshape(-1), reduction="none").view(y.shape)
        return (each * weights.to(logits).expand(len(y), -1, -1).gather(-1, y[..., None])[..., 0]).sum()

    return weighted


def balanced(y: Tensor) -> Likelihood:
    """Classification in which every class of these targets counts the same, whatever its share; n in sum, as ever."""
    counts = torch.bincount(y)
    weights = torch.where(counts > 0, len(y) / ((counts > 0).sum() * counts.clamp_min(1)), 0.0).float()

    def weighted(logits: Tensor, y: Tensor) -> Tensor:
        missing = logits.shape[-1] - len(weights)  # classes that are not here at all
        return cross_entropy(logits, y, weight=pad(weights.to(logits), (0, missing)), reduction="sum")

    return weighted


_HALF_LOG_2_PI = math.log(2 * math.pi) / 2


def gaussian(outputs: Tensor, y: Tensor) -> Tensor:
    """Regression: y ~ N(m, s²), the outputs being m and log s (see `WithNoise` in networks.py)."""
    mean, log_noise = outputs.unbind(-1)
    return ((y - mean) / log_noise.exp()).square().sum() / 2 + log_noise.sum() + len(y) * _HALF_LOG_2_PI


def likelihood_of(y: Tensor) -> Likelihood:
    """By the kind of targets: classes are whole numbers, several labels a matrix of them."""
    if y.ndim == 2:
        return labels
    return gaussian if y.is_floating_point() else categorical


def value_and_gradient(
    likelihood: Likelihood, outputs: Tensor, y: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """−log p, and `scale` times its gradient by the outputs."""
    if (
        likelihood is categorical
    ):  # what autograd would call, without autograd, which takes longer than all of it
        log_p = outputs.log_softmax(1)
        value, weight = torch.ops.aten.nll_loss_forward.default(log_p, y, None, SUM, NO_LABEL)
        by_log_p = torch.ops.aten.nll_loss_backward.default(scale, log_p, y, None, SUM, NO_LABEL, weight)
        return value, torch.ops.aten._log_softmax_backward_data.default(by_log_p, log_p, 1, log_p.dtype)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        value = likelihood(leaf, y)
        (gradient,) = torch.autograd.grad(value * scale, leaf)
    return value.detach(), gradient
