"""Ordinary training of ordinary weights: minibatch steps on the mean loss plus whatever terms a method adds.

    L(θ) = mean −log p(batch | θ) + Σ terms(θ)

FedAvg and `local` have no term, FedProx (Li et al., 2020) a proximal one. The terms' gradients are closed forms, so
autograd sees only the plain network. A method whose steps are of another kind takes them itself, with the gradients of
`MeanLoss`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from bayes_core.flat import Shapes, buffers_in, buffers_of, shapes_of, unflatten, with_buffers
from bayes_core.inference.augment import Augment
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.inference.update import minibatches
from bayes_core.likelihoods import Likelihood, categorical

if TYPE_CHECKING:
    from bayes_core.inference.private import Mechanism

SETTLED = 128  # examples in a batch that only settles statistics
TOGETHER = 1024  # examples at a time of a gradient of all: bounds memory
SHORT = 1e-3  # the length of a way along which a gradient's change is measured


@dataclass(frozen=True)
class Weights:
    """A weight vector `v` (1, T) with its optimiser's state and the network's buffers by name."""

    v: Tensor
    optimizer: OptimizerState
    buffers: dict[str, Tensor]

    @classmethod
    def start(cls, v: Tensor, network: nn.Module, optimizer: str) -> "Weights":
        """At `v` (1, T), with a blank optimiser ("adam" or "sgd") and the network's own buffers."""
        return cls(v.clone(), OptimizerState.blank(v, optimizer), buffers_of(network))

    def state_dict(self) -> dict[str, Tensor]:
        """As named tensors, the form in which they are stored: theta, moments, steps, buffer.NAME."""
        steps = torch.tensor(self.optimizer.steps)
        tensors = {"theta": self.v, "moments": self.optimizer.moments, "steps": steps}
        return with_buffers(tensors, self.buffers)

    @classmethod
    def load_state_dict(cls, tensors: Mapping[str, Tensor]) -> "Weights":
        """Back from `state_dict`; other tensors are passed over."""
        optimizer = OptimizerState(tensors["moments"], int(tensors["steps"]))
        return cls(tensors["theta"], optimizer, buffers_in(tensors))


class Term(Protocol):
    """A term of the loss, by its gradient."""

    def add_to(self, gradient: Tensor, theta: Tensor, start: Tensor) -> None:
        """Adds the term's gradient at `theta`, in place; all (T,). `start` is where training began."""


@dataclass(frozen=True)
class Proximal:
    """(strength/2)·‖θ − anchor‖²: FedProx about the start; Ditto's and pFedMe's personal loss about the server's θ."""

    anchor: Tensor | None  # (T,) or (1, T); None: where this training starts
    strength: float

    def add_to(self, gradient: Tensor, theta: Tensor, start: Tensor) -> None:
        if self.strength:
            anchor = start if self.anchor is None else self.anchor.view(-1)
            gradient.add_(theta - anchor, alpha=self.strength)


@dataclass(frozen=True)
class Linear:
    """⟨vector, θ⟩: a constant correction of every gradient, as SCAFFOLD's c − c_i is."""

    vector: Tensor  # (T,) or (1, T)

    def add_to(self, gradient: Tensor, theta: Tensor, start: Tensor) -> None:
        gradient.add_(self.vector.view(-1))


@dataclass(frozen=True)
class Held:
    """Weights that stay where they are: `moves` (T,) is 1 for the others and 0 for them. It comes after other terms."""

    moves: Tensor

    def add_to(self, gradient: Tensor, theta: Tensor, start: Tensor) -> None:
        gradient.mul_(self.moves)


def train_weights(
    network: nn.Module,
    start: Weights,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    batch_size: int,
    optimizer: str,
    lr: float,
    generator: torch.Generator,
    adam_beta2: float,
    likelihood: Likelihood = categorical,
    terms: Sequence[Term] = (),
    after_step: Callable[[int, Tensor], None] | None = None,
    augment: Augment | None = None,
    private: "Mechanism | None" = None,
) -> tuple[Weights, float]:
    """`steps` minibatch steps on the mean loss and its terms. Its inputs are not changed.

    Args:
        network: any module; left in training mode.
        start: weights, optimiser and buffers to go on from.
        x: the training inputs (n, …) …
        y: … and targets (n, …).
        steps: how many.
        batch_size: b; all examples where there are fewer.
        optimizer: "adam" or "sgd", as in `start`.
        lr: the learning rate.
        generator: the stream of the batches.
        adam_beta2: Adam's β₂.
        likelihood: −log p of targets given the network's outputs, summed over a batch.
        terms: added to the mean loss, in this order.
        after_step: called with the number of the step, from 1, and the iterate (1, T). The next step changes that
            tensor in place: keep a copy.
        augment: what is done to the inputs of a batch before it is used.
        private: with it the steps learn of the data through clipped and noised gradients alone; the loss is then 0.

    Returns:
        The new weights, and the mean loss of an example without the terms.
    """
    n = len(x)
    b = min(batch_size, n)
    shapes = shapes_of(network)
    buffers = {name: buffer.clone() for name, buffer in start.buffers.items()}
    v = start.v.clone()
    optimiser = Optimiser(v, start.optimizer, optimizer, lr, beta2=adam_beta2)
    loss = torch.zeros((), device=v.device)

    network.train()
    batches = private.batches(n, b, steps, generator) if private else minibatches(n, b, steps, generator)
    for step, batch in enumerate(batches, 1):
        inputs = x[batch] if augment is None else augment(x[batch])
        if private:
            value, gradient = (
                torch.zeros_like(loss),
                private.gradient(network, v[0], buffers, inputs, y[batch], likelihood),
            )
            gradient.div_(n * private.rate(n, b))
        else:
            value, gradient = nll_gradient(network, shapes, v[0], buffers, inputs, y[batch], likelihood)
            gradient.div_(b)
        for term in terms:
            term.add_to(gradient, v[0], start.v[0])
        optimiser.step(gradient[None])
        loss += value / b
        if after_step is not None:
            after_step(step, v)
    return replace(start, v=v, optimizer=optimiser.state(), buffers=buffers), float(loss) / steps


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


class MeanLoss:
    """f(θ), the mean −log p of training examples, by its gradients (T,).

    Its `buffers` are copies, and move as those of a training network do. `value` is f as the latest gradient met it.
    With `augment`, a batch is changed when it is first met, and the same as long as no other is.
    """

    def __init__(
        self,
        network: nn.Module,
        x: Tensor,
        y: Tensor,
        likelihood: Likelihood,
        buffers: Mapping[str, Tensor],
        augment: Augment | None = None,
    ) -> None:
        self.network, self.x, self.y, self.likelihood = network, x, y, likelihood
        self.shapes = shapes_of(network)
        self.buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        self.value = torch.zeros((), device=x.device)
        self.augment = augment
        self._met: tuple[Tensor, Tensor] | None = (
            None  # the latest batch, and its inputs as they were changed
        )

    def gradient(self, theta: Tensor, batch: Tensor) -> Tensor:
        """∇f(θ) on the examples with these indices."""
        return self._gradient(theta, [(self._inputs(batch), self.y[batch])])

    def _inputs(self, batch: Tensor) -> Tensor:
        if self.augment is None:
            return self.x[batch]
        if self._met is None or self._met[0] is not batch:
            self._met = batch, self.augment(self.x[batch])
        return self._met[1]

    def gradient_of_all(self, theta: Tensor) -> Tensor:
        """∇f(θ) on all examples, some at a time."""
        count = max(1, len(self.x) // TOGETHER)
        return self._gradient(theta, zip(self.x.tensor_split(count), self.y.tensor_split(count), strict=True))

    def hessian_times(self, theta: Tensor, direction: Tensor, batch: Tensor) -> Tensor:
        """∇²f(θ)·direction, by central differences over the same short way whatever the direction's length."""
        length: Tensor = direction.norm()
        delta = SHORT / length.clamp_min(torch.finfo(direction.dtype).tiny)
        devices = [theta.device] if theta.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # a network with dropout drops the same units at both ends
            ahead = self.gradient(theta + delta * direction, batch)
        behind = self.gradient(theta - delta * direction, batch)
        return (ahead - behind) / (2 * delta)

    def _gradient(self, theta: Tensor, parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        self.network.train()
        total, value, n = torch.zeros_like(theta), torch.zeros_like(self.value), 0
        for x, y in parts:
            one, gradient = nll_gradient(
                self.network, self.shapes, theta, self.buffers, x, y, self.likelihood
            )
            total, value, n = total + gradient, value + one, n + len(x)
        self.value = value / n
        return total / n


@torch.no_grad()
def settled(network: nn.Module, theta: Tensor, buffers: Mapping[str, Tensor], x: Tensor) -> dict[str, Tensor]:
    """The buffers after the inputs x (n, …) went through the network with weights θ once: their own statistics.

    Batch norm takes the mean over all batches, not the running one, which would still be half of what was there before.
    """
    found = {name: buffer.clone() for name, buffer in buffers.items()}
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    counts = {name: buffer.clone() for name, buffer in found.items() if name.endswith("num_batches_tracked")}
    if not norms or len(x) < 2:
        return found
    for buffer in (found[name] for name in counts):
        buffer.zero_()
    try:
        for norm in norms:
            norm.momentum = None
        network.train()
        for batch in x.tensor_split(max(1, len(x) // SETTLED)):
            functional_call(network, (unflatten(theta, shapes_of(network)), found), (batch,))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    return found | counts
