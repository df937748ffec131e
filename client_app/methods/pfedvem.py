"""pFedVEM, the client's half: a Gaussian over its own head, and a body that it shares.

A round, from the received body and μ:

    ρ² = [Σσ² + ‖μ_i − μ‖²] / d                          the width of the prior, from this client's own head (M-step)
    head: steps on −log p(all n examples) + KL(N(μ_i, σ²) ‖ N(μ, ρ²)), the body fixed (E-step)
    body: steps on the mean loss under heads that are drawn anew

Sent are the body, μ_i and ρ. The personal model is the received body with this client's head. Different from the
authors' code: head steps see minibatches whose −log p counts n/b-fold, not all examples; σ starts as `rho-init` says.
"""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import softplus

from bayes_core import Gaussian, Point
from bayes_core.families import Draw, Family
from bayes_core.flat import Split, buffers_in, with_buffers
from bayes_core.inference.augment import Augment
from bayes_core.inference.optimisers import Optimiser, OptimizerState
from bayes_core.inference.update import minibatches
from bayes_core.predict.predictor import Predictor, WeightsPredictor
from bayes_core.server.aggregate import inverse_softplus
from client_app.method import ClientMethod, Tensors, Trained, statistics_in
from fedbayes.protocol.settings import HeadName, Options, Rate, RhoInit, takes

CERTAIN = -20.0  # ρ of weights without uncertainty: σ = 2e-9


class HeadOptions(Options):
    head: HeadName
    rho_init: RhoInit
    lr_personal: Rate
    head_steps: int = takes("a whole number of at least 1", alias="pfedvem.head-steps", ge=1)
    mc_samples: int = takes("a whole number of at least 1", alias="pfedvem.mc-samples", ge=1)


class PFedVEM(ClientMethod):
    """A head of one's own, with a distribution; what is sent are weights."""

    reads: ClassVar[type[Options]] = HeadOptions
    options: HeadOptions
    family = Point()
    heads = Gaussian()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.split = Split.at_head(self.network, self.options.head)

    def start(self, received: Tensors) -> dict[str, Tensor]:
        head = self.heads.init(self.split.own(received["w"])[0], self.options.rho_init)
        return with_buffers({"head": head}, self.first_buffers(received["w"], received))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        body, mu = (part(received["w"]) for part in (self.split.shared, self.split.own))
        head, body = state["head"].clone(), body.clone()
        buffers = {**buffers_in(state), **statistics_in(received)}
        self.buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        rho = spread(head, mu[0])
        prior = torch.stack([mu[0], torch.full_like(mu[0], float(inverse_softplus(rho)))])
        self.network.train()
        self.fit_head(head, body, prior, server_round)
        loss = self.fit_body(head, body, server_round)
        uploads = {"w": self.split.join(body, head[:1])}
        return Trained(with_buffers({"head": head}, self.buffers), uploads, {"loss": loss, "rho": float(rho)})

    def fit_head(self, head: Tensor, body: Tensor, prior: Tensor, server_round: int) -> None:
        """Steps on −log p + KL(head ‖ prior), in place."""
        optimiser = self.optimiser(head, self.options.lr_personal)
        generator = self.stream(server_round, "draws of the head")
        augment = self.augmentation and self.augmentation(server_round, "head")
        for batch in self.batches(self.options.head_steps, server_round, "head"):
            gradient = self.heads.kl_gradient_q(head, prior)
            draws = self.draws(head, generator)
            _, _, by_head = self.losses(body, draws, batch, augment)
            for draw, at_theta in zip(draws, by_head * (len(self.x) / len(batch)), strict=True):
                self.heads.likelihood_gradient(head, draw, at_theta, gradient)
            optimiser.step(gradient)

    def fit_body(self, head: Tensor, body: Tensor, server_round: int) -> float:
        """Steps on the mean loss under drawn heads, in place; that loss."""
        optimiser = self.optimiser(body, self.settings.lr_global)
        generator, loss = self.stream(server_round, "draws for the body"), torch.zeros((), device=self.device)
        augment = self.augmentation and self.augmentation(server_round)
        for batch in self.batches(self.settings.local_steps, server_round, "train"):
            value, by_body, _ = self.losses(body, self.draws(head, generator), batch, augment)
            optimiser.step(by_body / len(batch))
            loss += value / len(batch)
        return float(loss) / self.settings.local_steps

    def draws(self, head: Tensor, generator: torch.Generator) -> list[Draw]:
        return [self.heads.sample(head, generator) for _ in range(self.options.mc_samples)]

    def losses(
        self, body: Tensor, draws: Sequence[Draw], batch: Tensor, augment: Augment | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """−log p of a batch, the mean over the drawn heads; its gradient by the body, and by each head.

        All heads see one pass through the body.
        """
        x, y, bodies = self.x[batch], self.y[batch], body.detach().requires_grad_()
        x = x if augment is None else augment(x)
        heads = torch.stack([draw.theta for draw in draws]).requires_grad_()

        def nll(head: Tensor) -> Tensor:
            weights = self.split.named(bodies[0], head)
            return self.likelihood(functional_call(self.network, (weights, self.buffers), (x,)), y)

        with torch.enable_grad():
            value = vmap(nll, randomness="same")(heads).mean()
            by_body, by_head = torch.autograd.grad(value, (bodies, heads))
        return value.detach(), by_body, by_head

    def optimiser(self, parameters: Tensor, lr: float) -> Optimiser:
        """A new one in every round."""
        name = self.settings.optimizer
        blank = OptimizerState.blank(parameters, name)
        return Optimiser(parameters, blank, name, lr, beta2=self.settings.adam_beta2)

    def batches(self, steps: int, server_round: int, purpose: str) -> Iterator[Tensor]:
        n = len(self.x)
        return minibatches(n, min(self.settings.batch_size, n), steps, self.stream(server_round, purpose))

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        w, body = received["w"], self.split.shared(received["w"])
        certain = torch.cat([body, torch.full_like(body, CERTAIN)])
        v = self.split.join(certain, state["head"])
        pm = WeightsPredictor(self.network, self.heads, v, self.made(v[:1], state, received).buffers)
        return {"pm": pm, "gm": self.weights(w, state, received)}

    @classmethod
    def restore(cls, network: nn.Module, family: Family, tensors: Tensors) -> Predictor | None:
        """The model that the closing exchange keeps; a state alone has no body."""
        return super().restore(network, cls.heads, tensors)


def spread(head: Tensor, mu: Tensor) -> Tensor:
    """ρ = √([Σσ² + ‖μ_i − μ‖²] / d), for a head (2, d) of means and ρ's of σ = softplus(ρ)."""
    return (softplus(head[1]).square() + (head[0] - mu).square()).mean().sqrt()


METHOD = PFedVEM
