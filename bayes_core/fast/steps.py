"""The steps on q and w of one client round, in plain PyTorch: any device, any optimiser."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bayes_core.families import Family
from bayes_core.fast.workspace import workspace
from bayes_core.inference.optimisers import Optimiser


class Steps(Protocol):
    """What `client_update` asks for; gradients are those of −log p at both draws, as twins.py gives them."""

    thetas: Tensor  # (2, T), where `draw` puts its two mirrored draws

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> None: ...

    def add(self, gradients: Sequence[Tensor]) -> None:
        """A sample that is not the last of its step on q."""

    def step(self, gradients: Sequence[Tensor], both: bool) -> None:
        """On q, with the gradients of the last draw and of those that were added before; then, if `both`, on w."""


class PlainSteps:
    """In place on the parameters of the two optimisers."""

    def __init__(self, family: Family, q_optimiser: Optimiser, w_optimiser: Optimiser, zeta: float) -> None:
        self.q_optimiser, self.w_optimiser = q_optimiser, w_optimiser
        self.work = workspace(family, q_optimiser.parameters, w_optimiser.parameters, zeta)
        self.thetas = self.work.thetas
        self.gradients = torch.empty_like(self.thetas)

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> None:
        self.work.draw(generator, gates)

    def add(self, gradients: Sequence[Tensor]) -> None:
        if len(gradients) > 2:
            torch.cat([part.reshape(-1) for part in gradients], out=self.gradients.view(-1))
            gradients = list(self.gradients)
        self.work.add(*gradients)

    def step(self, gradients: Sequence[Tensor], both: bool) -> None:
        self.add(gradients)
        self.q_optimiser.step(self.work.q_gradient())
        self.work.q_moved()
        self.work.clear()
        if both:
            self.w_optimiser.step(self.work.w_gradient())
            self.work.w_moved()
