"""Differential privacy of single examples: what a training step may learn of the data, clipped and noised.

A step on q needs of the data only G = Σ_i ∂(−log p(y_i | x_i, θ))/∂θ at the drawn θ: every row's gradient (∂μ, ∂ρ, ∂ by
logit λ) is G times numbers that the draw and q give, which see no data, and the gradient of the KL sees none either. So
it is G that is made private, (T,) whatever the number of rows. Each example's G_i, computed with that example alone in
the network, is clipped to norm C; taking an example out moves the sum by at most C, and Gaussian noise of standard
deviation z·C in every number is added. All that follows is post-processing: rows, KL, Adam, the steps on w, the upload.

The draw of θ comes from the run's seed, which others know: the argument holds for every θ. The noise comes from the
operating system, and so do Poisson batches, whose secrecy is what they are for.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from bayes_core.accounting import Release
from bayes_core.families import wide
from bayes_core.fast.mirrored import is_chain, layers
from bayes_core.flat import Shapes, shapes_of, unflatten
from bayes_core.likelihoods import Likelihood, value_and_gradient
from bayes_core.privacy import Normal, system_normal

TOGETHER = 2**24  # numbers of single examples' gradients in memory at once
Uniform = Callable[[int], np.ndarray]  # so many independent draws from U(0, 1)


def system_uniform(count: int) -> np.ndarray:
    """Draws from U(0, 1) out of the operating system's randomness."""
    bits = np.frombuffer(os.urandom(8 * count), np.uint64)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Mechanism:
    """How single examples are hidden: z, C, and how batches are made.

    `poisson`: every example is in every batch with probability b/n, in secret. Otherwise passes over the shuffled data
    in equal batches, so that an example takes part in one of them in each pass; nothing is claimed for their secrecy.
    """

    noise: float
    clip: float
    poisson: bool = False
    normal: Normal = system_normal
    uniform: Uniform = system_uniform

    def rate(self, n: int, b: int) -> float:
        """The share of the n examples in a batch: a step divides by what it expects, not by what it meets."""
        return min(1.0, b / n) if self.poisson else 1 / _parts(n, b)

    def batches(self, n: int, b: int, count: int, generator: torch.Generator) -> Iterator[Tensor]:
        """The indices of `count` batches; of Poisson's, which may be empty, `generator` tells nothing."""
        if self.poisson:
            for _ in range(count):
                chosen = np.flatnonzero(self.uniform(n) < self.rate(n, b))
                yield torch.from_numpy(chosen).to(generator.device)
            return
        parts, order = _parts(n, b), tuple[Tensor, ...]()
        for number in range(count):
            if number % parts == 0:
                order = torch.randperm(n, generator=generator, device=generator.device).tensor_split(parts)
            yield order[number % parts]

    def cost(self, n: int, b: int, count: int) -> Release:
        """What so many steps are in a ledger."""
        if self.poisson:
            return Release(self.noise, self.rate(n, b), count)
        return Release(self.noise, 1.0, math.ceil(count / _parts(n, b)))

    def gradient(
        self,
        network: nn.Module,
        theta: Tensor,
        buffers: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        likelihood: Likelihood,
    ) -> Tensor:
        """G of these examples (T,), clipped and noised: all that a step learns of them."""
        return self.noised(clipped_sum(network, theta, buffers, x, y, likelihood, self.clip))

    def noised(self, total: Tensor) -> Tensor:
        """A sum of clipped gradients (T,), as it may be known."""
        noise = torch.from_numpy(self.normal(total.numel()) * (self.noise * self.clip))
        summed = wide(total.detach())
        return (summed + noise.to(summed.device)).to(total.dtype).to(total.device)


def _parts(n: int, b: int) -> int:
    """Batches in a pass."""
    return math.ceil(n / min(b, n))


class NoisedPair:
    """In place of a mirrored pair (fast/mirrored.py): one draw for all examples of a batch, so one noise a step."""

    def __init__(
        self, network: nn.Module, thetas: Tensor, buffers: Mapping[str, Tensor], mechanism: Mechanism
    ) -> None:
        self.network, self.thetas, self.buffers, self.mechanism = network, thetas, buffers, mechanism
        self.gradients = torch.zeros_like(thetas)  # of the mirrored draw none

    def nll_gradients(
        self, x: Tensor, y: Tensor, scale: Tensor, likelihood: Likelihood
    ) -> tuple[Tensor, list[Tensor]]:
        """`scale` times the noised sum; −log p itself is told to nobody."""
        found = self.mechanism.gradient(self.network, self.thetas[0], self.buffers, x, y, likelihood)
        torch.mul(found, scale, out=self.gradients[0])
        return torch.zeros_like(scale), list(self.gradients)


def clipped_sum(
    network: nn.Module,
    theta: Tensor,
    buffers: Mapping[str, Tensor],
    x: Tensor,
    y: Tensor,
    likelihood: Likelihood,
    clip: float,
) -> Tensor:
    """Σ_i G_i·min(1, C/‖G_i‖), shape (T,); an example whose gradient is not finite adds nothing."""
    if len(x) and is_chain(network, x):
        return _of_chain(network, theta, x, y, likelihood, clip)
    shapes, total = shapes_of(network), torch.zeros_like(theta)
    each = vmap(grad(_alone(network, shapes, buffers, likelihood)), (None, 0, 0), randomness="different")
    size = max(1, TOGETHER // theta.numel())
    for begin in range(0, len(x), size):
        gradients = each(theta.detach(), x[begin : begin + size], y[begin : begin + size])
        factor = clip_factors(gradients.square().sum(1), clip)
        total += factor @ _finite([gradients], factor)[0]
    return total


def clip_factors(squares: Tensor, clip: float) -> Tensor:
    """min(1, C/norm) from squared norms (b,); 0 where one is not finite."""
    factor = clip / squares.sqrt().clamp_min(clip)
    return torch.where(squares.isfinite(), factor, torch.zeros_like(factor))


def _finite(parts: list[Tensor], factor: Tensor) -> list[Tensor]:
    """0 for numbers that are not finite, of examples that add nothing.

    On the CPU only where there are such; on a device always, since to ask it would mean to wait for it.
    """
    if factor.device.type == "cpu" and bool(factor.all()):
        return parts
    return [one.nan_to_num(0, 0, 0) for one in parts]


def _alone(
    network: nn.Module, shapes: Shapes, buffers: Mapping[str, Tensor], likelihood: Likelihood
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """−log p of one example, the only one in its batch."""

    def nll(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        weights = (unflatten(theta, shapes), dict(buffers))
        return likelihood(functional_call(network, weights, (x[None],)), y[None])

    return nll


@torch.no_grad()
def _of_chain(
    network: nn.Sequential, theta: Tensor, x: Tensor, y: Tensor, likelihood: Likelihood, clip: float
) -> Tensor:
    """The same for linear layers with ReLU between them, without any single example's gradient in memory.

    That of a layer's weights is an outer product δ_i a_iᵀ, whose norm is ‖δ_i‖·‖a_i‖, and of its bias δ_i.
    """
    found, inputs = torch.empty_like(theta), [x.flatten(1)]
    deltas: list[Tensor] = []
    weights = [(weight[0], bias[0, :, 0]) for weight, bias in layers(network, theta[None])]
    for weight, bias in weights:
        outputs = torch.addmm(bias, inputs[-1], weight.T)
        inputs.append(outputs.relu())
    _, delta = value_and_gradient(likelihood, outputs, y, outputs.new_ones(()))
    squares = torch.zeros_like(delta[:, 0])
    for number in range(len(weights))[::-1]:
        deltas.insert(0, delta)
        squares += delta.square().sum(1) * (inputs[number].square().sum(1) + 1)
        if number:
            delta = (delta @ weights[number][0]) * (inputs[number] > 0)
    factor = clip_factors(squares, clip)
    deltas, inputs = _finite(deltas, factor), _finite(inputs, factor)
    for (weight, bias), delta, given in zip(layers(network, found[None]), deltas, inputs, strict=False):
        scaled = delta * factor[:, None]
        torch.mm(scaled.T, given, out=weight[0])
        torch.sum(scaled, 0, out=bias[0, :, 0])
    return found
