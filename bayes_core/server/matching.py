"""Probabilistic federated neural matching: which neurons of different networks are the same, and what they are.

Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni: "Bayesian Nonparametric Federated Learning of Neural Networks",
2019. A hidden neuron is a row of numbers: its weights and its bias. The J networks' neurons are draws N(θ, σ²) around
atoms θ ~ N(μ₀, σ₀²), of which each network has some (a Beta-Bernoulli process of mass γ): no two of its neurons share
one. With precisions p = 1/σ², x = p·v, and for each atom the sums P = p₀ + Σp and g = p₀μ₀ + Σx, giving neuron l of
network j to atom i, which m of the other networks have, gains

    Σ (x_l + g_i)² / (p + P_i) − Σ g_i² / P_i + 2·log(m / (J − m)),

and making the k-th new atom of it Σ (x_l + x₀)² / (p + p₀) − Σ x₀² / p₀ + 2·log(γ / J) − 2·log k. The best assignment
of one network, the others fixed, is a linear one; networks are matched anew in turn. At the end θ = g / P.

Different from the authors' code: the popularity of an atom counts twice, as the derivation has it, and is not capped;
μ₀ may be other than 0 for any σ₀. In a network of several hidden layers, a weight to a neuron that a client does not
have is unknown to it, not 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Array = NDArray[np.float64]
Places = NDArray[np.int64]
Layers = list[tuple[Array, Array]]  # of a fully connected network: weights (out, in) and bias (out,)
BIAS = 0.1  # μ₀ of a bias, as in the authors' code; of a weight it is 0


@dataclass(frozen=True)
class Beliefs:
    """What is believed of neurons before any is seen."""

    variance: float = 1.0  # σ²: of a client's neurons around their atoms
    prior: float = 1.0  # σ₀²: of atoms around μ₀
    mass: float = 1.0  # γ: how readily a neuron is taken for a new one
    cap: int = 700  # of atoms in a layer


class Matching:
    """The neurons of J networks in one layer, and the atoms that they are given to.

    Args:
        rows: of each network, its neurons' numbers (L_j, d).
        precisions: of each network, p (d,); 0 for a number that it does not know.
        mean: μ₀ (d,).
        beliefs: the model's other parameters.
    """

    def __init__(
        self, rows: Sequence[Array], precisions: Sequence[Array], mean: Array, beliefs: Beliefs
    ) -> None:
        self.p = list(precisions)
        self.x = [p * v for p, v in zip(precisions, rows, strict=True)]
        self.p0 = np.full_like(mean, 1 / beliefs.prior)
        self.x0 = mean * self.p0
        self.beliefs, self.count = beliefs, len(rows)
        self.sums, self.precisions = np.zeros((0, len(mean))), np.zeros((0, len(mean)))
        self.members = np.zeros(0, np.int64)  # how many networks have each atom
        self.places: list[Places | None] = [None] * len(rows)  # of each network, its neurons' atoms

    @property
    def atoms(self) -> Array:
        """θ = g / P, (L, d)."""
        return self.sums / self.precisions

    def match(
        self, sweeps: int, rng: np.random.Generator, before: Sequence[Places | None] = ()
    ) -> list[Places]:
        """The atoms of every network's neurons: from where they were `before`, or from the widest network on."""
        for j, places in enumerate(before):
            if places is not None:
                self._put(j, places)
        self._drop()
        for j in sorted(range(self.count), key=lambda one: -len(self.x[one])):
            if self.places[j] is None:
                self.give(j)
        for _ in range(sweeps):
            for j in rng.permutation(self.count).tolist():
                self.take(j)
                self.give(j)
        return [places for places in self.places if places is not None]

    def gains(self, j: int) -> Array:
        """(L_j, L + new): of each of a network's neurons for each atom, and for each further one."""
        x, p, g, total = self.x[j], self.p[j], self.sums, self.precisions
        inverse = 1 / (p + total)
        known = _product(x**2, inverse) + 2 * _product(x, g * inverse) + (g**2 * (inverse - 1 / total)).sum(1)
        known += 2 * np.log(self.members / (self.count - self.members))
        room = max(self.beliefs.cap, len(x)) - len(g)
        alone = ((x + self.x0) ** 2 / (p + self.p0)).sum(1) - (self.x0**2 / self.p0).sum()
        number = np.arange(1, min(len(x), max(room, 0)) + 1)
        return np.hstack([known, alone[:, None] + 2 * np.log(self.beliefs.mass / self.count / number)])

    def give(self, j: int) -> None:
        """A network's neurons to the atoms where they gain most; those that gain more alone make new ones."""
        _, places = linear_sum_assignment(self.gains(j), maximize=True)
        new = np.flatnonzero(places >= len(self.sums))
        places[new] = len(self.sums) + np.arange(len(new))
        self._put(j, places)

    def take(self, j: int) -> None:
        """A network's neurons away from their atoms; those that nobody else has are gone."""
        places = self.places[j]
        assert places is not None
        self.sums[places] -= self.x[j]
        self.precisions[places] -= self.p[j]
        self.members[places] -= 1
        self.places[j] = None
        self._drop()

    def _put(self, j: int, places: Places) -> None:
        if (more := int(places.max()) + 1 - len(self.sums)) > 0:
            self.sums = np.vstack([self.sums, np.tile(self.x0, (more, 1))])
            self.precisions = np.vstack([self.precisions, np.tile(self.p0, (more, 1))])
            self.members = np.append(self.members, np.zeros(more, np.int64))
        self.sums[places] += self.x[j]
        self.precisions[places] += self.p[j]
        self.members[places] += 1
        self.places[j] = places

    def _drop(self) -> None:
        """Atoms without members; the others are numbered anew."""
        kept = self.members > 0
        self.sums, self.precisions, self.members = self.sums[kept], self.precisions[kept], self.members[kept]
        numbers = np.cumsum(kept) - 1
        self.places = [None if one is None else numbers[one] for one in self.places]


def _product(a: Array, b: Array) -> Array:
    """a·bᵀ by torch, in as many threads as the run has: NumPy has its own, which fight with clients for the cores."""
    product: Array = (torch.from_numpy(a) @ torch.from_numpy(b).T).numpy()
    return product


def match_networks(
    networks: Sequence[Layers],
    shares: Array,
    beliefs: Beliefs,
    sweeps: int,
    rng: np.random.Generator,
    before: Sequence[Sequence[Places] | None],
) -> tuple[Layers, list[list[Places]]]:
    """One network of all neurons, from fully connected ones: hidden layers are matched from the last to the first.

    Args:
        networks: of each client.
        shares: (J, K), what each client's say in each output is; they add up to 1 where the examples of a class do.
        beliefs: of neurons.
        sweeps: how often every network is matched anew.
        rng: the stream of the order in which they are.
        before: of each client, the places of its neurons in each hidden layer the last time, or None.

    Returns:
        The matched network, and of each client the places of its neurons in each of its hidden layers.
    """
    depth, outputs = len(networks[0]) - 1, shares.shape[1]
    above, width = [np.arange(outputs) for _ in networks], outputs
    biases = np.stack([one[-1][1] for one in networks])
    total = 1 / beliefs.prior + shares.sum(0) / beliefs.variance
    last = ((shares * biases).sum(0) / beliefs.variance + BIAS / beliefs.prior) / total
    layers: Layers = [(np.zeros((outputs, 0)), last)]
    places: list[list[Places]] = [[] for _ in networks]
    for c in reversed(range(depth)):
        inputs = (
            networks[0][0][0].shape[1] if c == 0 else 0
        )  # only the first layer's neurons have weights to inputs
        rows, precisions = [], []
        for j, one in enumerate(networks):
            (weight, bias), (onward, _) = one[c], one[c + 1]
            out, known = np.zeros((len(bias), width)), np.zeros(width)
            out[:, above[j]], known[above[j]] = onward.T, shares[j] if c == depth - 1 else 1
            rows.append(np.hstack([weight[:, :inputs], bias[:, None], out]))
            precisions.append(np.concatenate([np.ones(inputs + 1), known]) / beliefs.variance)
        mean = np.zeros(inputs + 1 + width)
        mean[inputs] = BIAS
        matching = Matching(rows, precisions, mean, beliefs)
        above = matching.match(sweeps, rng, [None if one is None else one[c] for one in before])
        atoms = matching.atoms
        layers[0] = atoms[:, inputs + 1 :].T, layers[0][1]
        layers.insert(0, (atoms[:, :inputs], atoms[:, inputs]))
        width = len(atoms)
        for own, found in zip(places, above, strict=True):
            own.insert(0, found)
    return layers, places


def part_of(layers: Layers, places: Sequence[Places]) -> Layers:
    """The network of a client whose hidden neurons are these of a matched one."""
    every = [np.arange(layers[0][0].shape[1]), *places, np.arange(len(layers[-1][1]))]
    pairs = zip(layers, every, every[1:], strict=False)
    return [(weight[np.ix_(out, into)], bias[out]) for (weight, bias), into, out in pairs]


def unpack(flat: Array, widths: Sequence[int]) -> Layers:
    """The layers of a fully connected network with these numbers of inputs, hidden neurons and outputs."""
    layers, begin = [], 0
    for into, out in pairwise(widths):
        middle = begin + into * out
        layers.append((flat[begin:middle].reshape(out, into), flat[middle : middle + out]))
        begin = middle + out
    return layers


def pack(layers: Layers) -> Array:
    """The reverse."""
    return np.concatenate([part.reshape(-1) for layer in layers for part in layer])


def widths_in(layers: Layers) -> list[int]:
    return [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
