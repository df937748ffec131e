"""Classes by a binary tree of Gaussian processes on a network's embedding: pFedGP's model.

Achituve, Shamsian, Navon, Chechik, Fetaya: "Personalized Federated Learning with Gaussian Processes", 2021. The tree
splits the classes in two, and each part again, by 2-means of the classes' mean embeddings. A Gaussian process
(polya_gamma.py) at each inner node says which side an example is on; a class has the product along its path.

Different from the authors' code: an example is on the left with probability E[σ(f*)], not exp(E[log σ(f*)]), which is
lower and favours the right side.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import normalize

from bayes_core.flat import Split, buffers_in, buffers_of, shapes_of, unflatten, with_buffers
from bayes_core.predict import polya_gamma
from bayes_core.predict.forecast import Forecast
from bayes_core.predict.predictive import outputs
from bayes_core.predict.predictor import Predictor
from bayes_core.predict.uncertainty import Prediction, entropy

CHAINS, STEPS = 30, 5  # of a prediction, and steps of any chain
FLOOR = 1e-6  # the probability of a class that this client has never seen
CHUNK = 256  # examples at a time
STARTS = 50  # of 2-means


class Node(NamedTuple):
    """An inner node: the classes on its two sides."""

    left: tuple[int, ...]
    right: tuple[int, ...]


def below(network: nn.Module, split: Split) -> nn.Module:
    """A copy of the network up to its head, whose inputs it gives; ValueError where that is no part on its own."""
    owners = [name.split(".")[:-1] for name in split.stays]
    common = [parts[0] for parts in zip(*owners, strict=False) if len(set(parts)) == 1]
    body = copy.deepcopy(network)
    if common:
        body.set_submodule(".".join(common), nn.Identity())
    if list(shapes_of(body)) != [name for name in split.shapes if name not in split.stays]:
        raise ValueError(
            f"The head ({', '.join(sorted(split.stays))}) is no part that can be taken off the network; name one: "
            "head=PREFIX."
        )
    return body


def embed(body: nn.Module, weights: Tensor, buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Of a training network: (n, d) of length 1, in float64 on the CPU; its buffers are updated in place."""
    body.train()
    return _unit(functional_call(body, (unflatten(weights, shapes_of(body)), _own(body, buffers)), (x,)))


def embedding(body: nn.Module, weights: Tensor, buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Likewise of a network that only predicts."""
    return _unit(outputs(body, weights, x, _own(body, buffers)))


def _own(body: nn.Module, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a whole network's buffers those of its body."""
    return {name: buffers[name] for name, _ in body.named_buffers()}


def _unit(found: Tensor) -> Tensor:
    return normalize(found.flatten(1).cpu().double())


def tree_of(z: Tensor, y: Tensor) -> list[Node]:
    """The inner nodes for embeddings (n, d) with classes y (n,), the root first; none for a single class."""
    classes = sorted(set(y.tolist()))
    means = {label: z[y == label].mean(0).numpy() for label in classes}
    nodes: list[Node] = []
    waiting = [tuple(classes)]
    while waiting:
        some = waiting.pop(0)
        if len(some) > 1:
            nodes.append(_halves(some, np.stack([means[label] for label in some])))
            waiting += nodes[-1]
    return nodes


def _halves(classes: tuple[int, ...], means: np.ndarray) -> Node:
    left = np.arange(len(classes)) < len(classes) // 2
    if len(classes) > 2 and len(np.unique(means, axis=0)) > 1:
        from sklearn.cluster import KMeans  # slow to import

        left = KMeans(2, n_init=STARTS, random_state=0).fit(means).labels_ == 0
    pairs = list(zip(classes, left.tolist(), strict=True))
    return Node(tuple(one for one, there in pairs if there), tuple(one for one, there in pairs if not there))


def stratified(y: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """The places of about `count` examples, of every class its share and at least one; all where there are fewer."""
    if len(y) <= count:
        return torch.arange(len(y))
    each = [torch.nonzero(y == label)[:, 0].numpy() for label in sorted(set(y.tolist()))]
    some = [rng.permutation(places)[: max(1, count * len(places) // len(y))] for places in each]
    return torch.from_numpy(np.sort(np.concatenate(some)))


def _among(y: Tensor, classes: Sequence[int]) -> Tensor:
    return torch.isin(y, torch.tensor(classes))


def tree_loss(
    nodes: Sequence[Node], z: Tensor, y: Tensor, chains: int, rng: np.random.Generator
) -> Tensor | None:
    """Σ over nodes of the mean −log p of half of a node's examples given the other half; None without any.

    Both sides of a node are halved. Its gradient goes through the embeddings z (n, d), and not through the ω.
    """
    losses = []
    for node in nodes:
        sides = [torch.nonzero(_among(y, classes))[:, 0].numpy() for classes in node]
        mixed = [torch.from_numpy(rng.permutation(side)) for side in sides]
        support, query = (torch.cat(parts) for parts in zip(*map(_half, mixed), strict=True))
        if not len(query) or min(map(len, mixed)) == 0:
            continue
        left = _among(y, node.left)
        omega = polya_gamma.gibbs(z[support].detach(), left[support], chains, STEPS, rng)
        mean, variance = polya_gamma.predictive(z[support], left[support], omega, z[query])
        sign = torch.where(left[query], 1.0, -1.0)
        losses.append(-polya_gamma.expected_sigmoid(sign * mean, variance).mean(0).log().mean())
    return torch.stack(losses).sum() if losses else None


def _half(places: Tensor) -> tuple[Tensor, Tensor]:
    """Support, with the odd one, and query."""
    query = len(places) // 2
    return places[query:], places[:query]


def probabilities(
    nodes: Sequence[Node],
    z: Tensor,
    y: Tensor,
    new: Tensor,
    classes: int,
    chains: int,
    rng: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Of new embeddings (m, d): class probabilities (m, classes), and those in each chain (chains, m, classes)."""
    p = torch.zeros(len(new), classes, dtype=torch.float64)
    p[:, sorted(set(y.tolist()))] = 1
    each = p.repeat(chains, 1, 1)
    for node in nodes:
        here = _among(y, node.left + node.right)
        x, left = z[here], _among(y[here], node.left)
        posterior = polya_gamma.Posterior(x, left, polya_gamma.gibbs(x, left, chains, STEPS, rng))
        chunks = [posterior.at(chunk) for chunk in torch.split(new, CHUNK)]
        on_left = torch.cat([polya_gamma.expected_sigmoid(*chunk) for chunk in chunks], 1)
        for side, share in ((node.left, on_left), (node.right, 1 - on_left)):
            each[..., list(side)] *= share[..., None]
            p[:, list(side)] *= share.mean(0)[:, None]
    return _floored(p), _floored(each)


def _floored(p: Tensor) -> Tensor:
    p = p.clamp_min(FLOOR)
    return p / p.sum(-1, keepdim=True)


@dataclass(frozen=True)
class TreePredictor(Predictor):
    """The tree on a client's own examples, by their embeddings.

    Attributes:
        body: the network below its head …
        split: … and what it is without.
        weights: the body's weights (S,).
        buffers: of the whole network, by name.
        z: embeddings (n, d) of the client's training examples …
        y: … and their classes (n,), on the CPU both.
        classes: how many there are at all clients.
    """

    body: nn.Module
    split: Split
    weights: Tensor
    buffers: Mapping[str, Tensor]
    z: Tensor
    y: Tensor
    classes: int

    @classmethod
    def restore(cls, network: nn.Module, tensors: Mapping[str, Tensor]) -> "TreePredictor":
        """From `tensors()`."""
        shapes = shapes_of(network)
        split = Split.of(shapes, [list(shapes)[place] for place in tensors["gp.head"].tolist()])
        buffers = {**buffers_of(network), **buffers_in(tensors)}
        weights, z, y = (tensors[f"gp.{name}"] for name in ("body", "z", "y"))
        return cls(below(network, split), split, weights, buffers, z, y, int(tensors["gp.classes"]))

    def tensors(self) -> dict[str, Tensor]:
        """The embedding, and the client's own examples in it: all that the nodes are made of."""
        head = [place for place, name in enumerate(self.split.shapes) if name in self.split.stays]
        found = {"head": torch.tensor(head), "body": self.weights, "z": self.z, "y": self.y}
        found["classes"] = torch.tensor(self.classes)
        return with_buffers({f"gp.{name}": tensor for name, tensor in found.items()}, self.buffers)

    def predict(self, x: Tensor, samples: int, generator: torch.Generator) -> Prediction:
        """From `samples` chains, and at least 30; the mutual information is that of label and chain."""
        seed = torch.randint(2**62, (1,), generator=generator, device=generator.device)
        rng, chains = np.random.default_rng(int(seed)), max(samples, CHAINS)
        new = embedding(self.body, self.weights, self.buffers, x)
        nodes = tree_of(self.z, self.y)
        p, each = probabilities(nodes, self.z, self.y, new, self.classes, chains, rng)
        return Prediction(p, entropy(p), (entropy(p) - entropy(each).mean(0)).clamp_min(0))

    def forecast(self, x: Tensor, samples: int, generator: torch.Generator) -> Forecast:
        raise ValueError("A tree of Gaussian processes predicts classes, not numbers.")
