"""pFedGP, the client's half: Gaussian processes on the received embedding and this client's own examples.

A round's tree is made with the received embedding. In each step half of a node's examples predict the other half, and
the embedding learns from it. A round has `pfedgp.inner-steps` steps, few as in the authors' code (one, and three on
CIFAR-10): with `local-steps` of them (0) the embedding of the digits gets worse again. At most `pfedgp.gp-points`
examples are in a step, of every class its share, since its cost grows with their cube. The kernel is fixed, the
network's last layer is not used, and nothing but buffers is kept. The personal model is the tree of this client's
training data in the received embedding.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from bayes_core import Point
from bayes_core.families import Family
from bayes_core.flat import Split, buffers_in, buffers_of, flatten, with_buffers
from bayes_core.inference.plain import settled
from bayes_core.predict.gp_tree import TreePredictor, below, embed, embedding, stratified, tree_loss, tree_of
from bayes_core.predict.polya_gamma import require_polyagamma
from bayes_core.predict.predictive import outputs
from bayes_core.predict.predictor import Predictor
from client_app.method import ClientMethod, Tensors, Trained
from fedbayes.protocol.settings import HeadName, Options, Rate, SettingsError, takes

MOMENTUM, DECAY, LONGEST = 0.9, 1e-3, 50.0  # of SGD, with the authors' values; the longest gradient


class GPOptions(Options):
    head: HeadName
    lr: Rate = Field(alias="pfedgp.lr")
    inner_steps: int = takes("a whole number of at least 0", alias="pfedgp.inner-steps", ge=0)
    points: int = takes("a whole number of at least 2", alias="pfedgp.gp-points", ge=2)
    chains: int = takes("a whole number of at least 1", alias="pfedgp.gp-chains", ge=1)


class PFedGP(ClientMethod):
    """An embedding for everybody, and a tree of Gaussian processes of one's own."""

    reads: ClassVar[type[Options]] = GPOptions
    options: GPOptions
    plain_sgd = True
    augments = False  # its processes rest on the examples as they are
    family = Point()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        try:
            require_polyagamma()
            self.split = Split.at_head(self.network, self.options.head)
            self.body = below(self.network, self.split)
        except (ImportError, ValueError) as error:
            raise SettingsError(str(error)) from None

    def start(self, received: Tensors) -> dict[str, Tensor]:
        return with_buffers({}, buffers_of(self.network))

    def train(self, state: Tensors, received: Tensors, server_round: int) -> Trained:
        weights, losses = received["w"].clone(), [0.0]
        buffers = {name: buffer.clone() for name, buffer in buffers_in(state).items()}
        rng, y = self.numbers(server_round, "train"), self.y.cpu()
        nodes = tree_of(embedding(self.body, weights[0], buffers, self.x), y)
        velocity = torch.zeros_like(weights)
        for _ in range(self.options.inner_steps or self.settings.local_steps):
            some = stratified(y, self.options.points, rng)
            leaf = weights.detach().requires_grad_()
            with torch.enable_grad():
                z = embed(self.body, leaf[0], buffers, self.x[some])
                loss = tree_loss(nodes, z, y[some], self.options.chains, rng)
            if loss is None:  # of a single class there is nothing to learn
                break
            (gradient,) = torch.autograd.grad(loss, leaf)
            gradient *= (LONGEST / gradient.norm()).clamp_max(1)
            velocity.mul_(MOMENTUM).add_(gradient).add_(weights, alpha=DECAY)
            weights -= self.options.lr * velocity
            losses.append(float(loss.detach()))
        report = {"loss": sum(losses) / max(len(losses) - 1, 1)}
        return Trained(with_buffers({}, buffers), {"w": weights}, report)

    def numbers(self, *words: int | str) -> np.random.Generator:
        """This client's random numbers for one purpose, as NumPy's."""
        return np.random.default_rng(self.stream(*words).initial_seed())

    def models(self, state: Tensors, received: Tensors) -> dict[str, Predictor]:
        weights, buffers, y = received["w"][0], buffers_in(state), self.y.cpu()
        own = {name: buffers[name] for name in buffers_of(self.body)}
        buffers |= settled(self.body, weights, own, self.x)
        some = stratified(y, 2 * self.options.points, self.numbers("support"))
        z = embedding(self.body, weights, buffers, self.x[some])
        classes = outputs(self.network, flatten(self.network), self.x[:1], buffers).shape[-1]
        return {"pm": TreePredictor(self.body, self.split, weights, buffers, z, y[some], classes)}

    @classmethod
    def restore(cls, network: nn.Module, family: Family, tensors: Tensors) -> Predictor | None:
        return TreePredictor.restore(network, tensors) if "gp.body" in tensors else None


METHOD = PFedGP
