"""ClientUpdate: the R alternating steps of the paper's boxes, for any `nn.Module`.

Objective of the personal distribution q, with the localized global distribution w held fixed:

    Ω(q) = (n/b)·(1/a)·Σ_l −log p(batch | θ_l) + ζ·KL(q ‖ w),   θ_l ~ q

and of w, with q held fixed: Ω_w(w) = KL(q ‖ w). The likelihood is the sum over the batch scaled by n/b.
Different from the paper: `personal_steps` may repeat the step on q before the step on w; and a sample of the
weights is used with its noise as drawn for one half of the batch, and mirrored (−g) for the other. Both are draws
from q and the gradient stays unbiased, but what the noise adds to first order cancels.

`PlainSteps` takes the steps in the formulas of the family, on any device and with any optimiser. Where there is a C
compiler, fast/fused.py takes the same steps in fewer passes over memory, and on a GPU fast/traced.py in fewer kernels.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from bayes_core.families.base import Draw, Family, Noise, Parts
from bayes_core.fast.compiled import NotCompiled
from bayes_core.fast.fused import FusedSteps
from bayes_core.fast.mirrored import SPLIT, Copies, MirroredPair, mirrored_pair
from bayes_core.fast.traced import traced
from bayes_core.flat import buffers_in, buffers_of, with_buffers
from bayes_core.inference.augment import Augment
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.inference.recipe import Recipe
from bayes_core.likelihoods import Likelihood, categorical
from bayes_core.parts import Beside

if TYPE_CHECKING:
    from bayes_core.inference.private import Mechanism


@dataclass(frozen=True)
class ClientState:
    """What a client keeps from round to round, and never sends.

    Attributes:
        q: the personal distribution (rows, T), in the family's unconstrained coordinates.
        q_optimizer: the optimiser's state for q …
        w_optimizer: … and for w, which go on in the next round.
        buffers: batch-norm statistics and the like, by name; empty only if the network has none.
    """

    q: Tensor
    q_optimizer: OptimizerState
    w_optimizer: OptimizerState
    buffers: dict[str, Tensor]

    @classmethod
    def start(cls, w: Tensor, network: nn.Module, optimizer: str) -> "ClientState":
        """A client without a past begins at the global distribution.

        Args:
            w: the global distribution (rows, T), in unconstrained coordinates.
            network: whose buffers it begins with.
            optimizer: "adam" or "sgd".
        """
        blank = OptimizerState.blank(w, optimizer)
        return cls(w.clone(), blank, blank, buffers_of(network))

    def state_dict(self) -> dict[str, Tensor]:
        """As named tensors, the form in which it is stored: q, q_moments, w_moments, steps (of both), buffer.NAME."""
        steps = torch.tensor([self.q_optimizer.steps, self.w_optimizer.steps])
        moments = {"q_moments": self.q_optimizer.moments, "w_moments": self.w_optimizer.moments}
        return with_buffers({"q": self.q, **moments, "steps": steps}, self.buffers)

    @classmethod
    def load_state_dict(cls, tensors: Mapping[str, Tensor]) -> "ClientState":
        """Back from `state_dict`; other tensors are passed over."""
        q_steps, w_steps = tensors["steps"].tolist()
        q_optimizer = OptimizerState(tensors["q_moments"], q_steps)
        w_optimizer = OptimizerState(tensors["w_moments"], w_steps)
        return cls(tensors["q"], q_optimizer, w_optimizer, buffers_in(tensors))


@dataclass(frozen=True)
class Updated:
    """The result of one client round."""

    personal: ClientState
    w: Tensor  # the localized global distribution, constrained (rows, T): the only thing uploaded
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
    augment: Augment | None = None,
    beside: Beside | None = None,
    private: "Mechanism | None" = None,
) -> Updated:
    """One client round: R × (step on q, step on w). Its inputs are not changed.

    Args:
        network: any module; left in training mode. One with dropout draws from torch's global stream.
        family: of q and w.
        personal: the client's state, from its last round or `ClientState.start`.
        w: the server's distribution (rows, T), constrained.
        x: the training inputs (n, …) …
        y: … and targets (n, …) of this client.
        recipe: the hyper-parameters.
        generator: the stream of batches and of g.
        likelihood: −log p of targets given the network's outputs, summed over a batch.
        gates: the stream of the gates' u; by default `generator`.
        augment: what is done to the inputs of a batch before it is used.
        beside: the plain weights of `network`, where not all have a distribution; they are trained in place.
        private: with it the steps on q learn of the data through clipped and noised gradients alone, each from a
            batch of its own; then w and the new state are private, and the loss is not told (0).

    Returns:
        The client's new state, the w to upload (constrained), and the mean loss of an example.
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
    network = beside.network if beside else network
    network.train()
    plain = Copies(network, steps.thetas, buffers, beside.leaves) if beside else None
    weight = 0.5 if b < SPLIT else 1.0  # too few to split: both draws see all
    if private:
        pair, batches, scale = _private(private, network, steps.thetas, buffers, n, recipe, generator)
    else:
        pair = plain or mirrored_pair(network, steps.thetas, buffers, x[:b])
        batches = minibatches(n, b, recipe.local_steps, generator)
        scale = torch.full_like(loss, weight * n / b / recipe.mc_samples)
    for batch in batches:
        x_batch, y_batch = x.index_select(0, batch), y.index_select(0, batch)
        if augment is not None:
            x_batch = augment(x_batch)
        for _ in range(recipe.personal_steps):
            for _ in range(recipe.mc_samples):
                steps.draw(generator, gates)
                value, gradients = pair.nll_gradients(x_batch, y_batch, scale, likelihood)
                steps.add(gradients)
                loss += value
                if beside and plain:
                    beside.add(plain.by_beside)
            steps.step_q()
            if beside:
                beside.step(n)
        steps.step_w()

    examples = recipe.local_steps * recipe.personal_steps * recipe.mc_samples * b / weight
    kept = ClientState(q, q_optimiser.state(), w_optimiser.state(), buffers)
    return Updated(kept, family.constrain(w), float(loss) / examples)


class Steps(Protocol):
    """What `client_update` asks for: steps in place on the parameters of two optimisers, q and w."""

    thetas: Tensor  # (2, T), where `draw` puts its two mirrored draws

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> None:
        """θ ~ q, and its mirror image."""

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Of −log p at the two draws, as fast/mirrored.py gives them."""

    def step_q(self) -> None:
        """On Ω(q), with all gradients that were added since the last one."""

    def step_w(self) -> None:
        """On Ω_w(w)."""


class Formulas:
    """What the steps take of a family, each in one go: on a GPU, fast/traced.py makes a kernel or two of each.

    ζ is a tensor, (): kernels hold for any, while a Python number would be built into them, and ζ may differ with the
    round and the client.
    """

    def __init__(self, family: Family, zeta: Tensor) -> None:
        self.family, self.zeta = family, zeta

    def parts(self, v: Tensor) -> Parts:
        return self.family.parts(v)

    def draws(self, q: Parts, noise: Noise, thetas: Tensor) -> list[Draw]:
        """From q, with this noise and with its mirror image; their weights are written to `thetas` (2, T)."""
        pairs = zip((noise, noise.mirrored()), thetas.unbind(), strict=True)
        return [self.family.reparameterise(q, one, theta) for one, theta in pairs]

    def prior(self, q: Parts, w: Parts, out: Tensor) -> None:
        """∂ζ·KL(q ‖ w)/∂q, written to `out`."""
        self.family.kl_gradient_q(q, w, out).mul_(self.zeta)

    def likelihood(self, q: Parts, draws: Sequence[Draw], gradients: Sequence[Tensor], out: Tensor) -> None:
        """∂(−log p)/∂q from the gradients at the draws' weights, layer by layer, added to `out`."""
        half = len(gradients) // 2
        for draw, parts in zip(draws, (gradients[:half], gradients[half:]), strict=True):
            at_theta = parts[0].view(-1) if half == 1 else torch.cat([part.reshape(-1) for part in parts])
            self.family.likelihood_gradient(q, draw, at_theta, out)

    def localize(self, q: Parts, w: Parts, out: Tensor) -> None:
        """∂KL(q ‖ w)/∂w, written to `out`."""
        self.family.kl_gradient_w(q, w, out)


class PlainSteps:
    """In the formulas of the family.

    A step is as slow as its traffic with memory: the parts of q and w (σ and the like) are made once after each move,
    and all gradients go into one tensor.
    """

    def __init__(
        self, family: Family, q_optimiser: Optimiser, w_optimiser: Optimiser, zeta: float, trace: bool = False
    ) -> None:
        self.family = family
        formulas = Formulas(family, q_optimiser.parameters.new_full((), zeta))
        self.formulas = formulas = traced(formulas) if trace else formulas
        self.q_optimiser, self.w_optimiser = q_optimiser, w_optimiser
        self.q, self.w = formulas.parts(q_optimiser.parameters), formulas.parts(w_optimiser.parameters)
        self.thetas = torch.stack([self.q.mu, self.q.mu])
        self.gradient = torch.empty_like(q_optimiser.parameters)
        self.fresh = True  # nothing was added since the last step

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> None:
        noise = self.family.noise(self.q_optimiser.parameters, generator, gates)
        self.draws = self.formulas.draws(self.q, noise, self.thetas)

    def add(self, gradients: Sequence[Tensor]) -> None:
        if self.fresh:
            self.formulas.prior(self.q, self.w, self.gradient)
            self.fresh = False
        self.formulas.likelihood(self.q, self.draws, gradients, self.gradient)

    def step_q(self) -> None:
        self.q_optimiser.step(self.gradient)
        self.q, self.fresh = self.formulas.parts(self.q_optimiser.parameters), True

    def step_w(self) -> None:
        self.formulas.localize(self.q, self.w, self.gradient)
        self.w_optimiser.step(self.gradient)
        self.w = self.formulas.parts(self.w_optimiser.parameters)


def _steps(family: Family, q_optimiser: Optimiser, w_optimiser: Optimiser, recipe: Recipe) -> Steps:
    if recipe.compile is not False:
        try:
            if q_optimiser.parameters.device.type == "cuda":
                return PlainSteps(family, q_optimiser, w_optimiser, recipe.zeta, trace=True)
            return FusedSteps(family, q_optimiser, w_optimiser, recipe.zeta)
        except NotCompiled as reason:
            if recipe.compile:
                _warn(f"compile = true, but plain PyTorch takes the steps: {reason}.")
    return PlainSteps(family, q_optimiser, w_optimiser, recipe.zeta)


def _private(
    private: "Mechanism",
    network: nn.Module,
    thetas: Tensor,
    buffers: Mapping[str, Tensor],
    n: int,
    recipe: Recipe,
    generator: torch.Generator,
) -> tuple[MirroredPair, Iterator[Tensor], Tensor]:
    """Gradients, batches and the scale of a private update: one draw and one release for each step."""
    from bayes_core.inference.private import NoisedPair

    if recipe.personal_steps != 1 or recipe.mc_samples != 1:
        raise ValueError("A private update takes one draw and one step on q before each step on w.")
    pair = NoisedPair(network, thetas, buffers, private)
    batches = private.batches(n, recipe.batch_size, recipe.local_steps, generator)
    return pair, batches, torch.full((), 1 / private.rate(n, recipe.batch_size), device=thetas.device)


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
