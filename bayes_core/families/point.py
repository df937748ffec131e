"""One weight vector and no uncertainty."""

import torch
from torch import Tensor

from bayes_core.families.base import Draw, Family, Noise


class Point(Family):
    """One weight vector and no uncertainty: what FedAvg sends."""

    name = "point"
    rows = ("theta",)

    def noise(self, v: Tensor, generator: torch.Generator, gates: torch.Generator | None = None) -> Noise:
        return Noise(torch.zeros(0))

    def reparameterise(self, v: Tensor, noise: Noise) -> Draw:
        return Draw(v[0], noise.g)

    def centre(self, v: Tensor) -> Tensor:
        return v[0]
