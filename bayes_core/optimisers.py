"""One optimiser step on one flat tensor, with its memory as plain data.

The memory is a tensor of its own because it lives longer than any process: it is stored with the personal
distribution and goes on in the next round. Adam is PyTorch's own (functional) kernel.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam

OPTIMIZERS = ("adam", "sgd")


@dataclass(frozen=True)
class Memory:
    """Adam's two moments as (2, *shape) and the number of steps taken; SGD uses the count alone."""

    moments: Tensor
    steps: int

    @classmethod
    def blank(cls, parameters: Tensor, optimizer: str) -> "Memory":
        shape = (2, *parameters.shape) if optimizer == "adam" else (0,)
        return cls(torch.zeros(shape, device=parameters.device), 0)


class Optimiser:
    """Takes steps in place on `parameters`; `memory()` gives what must be kept."""

    def __init__(
        self,
        parameters: Tensor,
        memory: Memory,
        optimizer: str,
        lr: float,
        lr_third: float | None = None,
        beta2: float = 0.999,
    ) -> None:
        if optimizer not in OPTIMIZERS or (optimizer == "adam") != (memory.moments.numel() > 0):
            raise ValueError(
                f"No optimiser {optimizer!r} with this memory; there are {' and '.join(OPTIMIZERS)}."
            )
        self.parameters = parameters
        self.optimizer = optimizer
        self.beta2 = beta2
        self.slices = [(slice(None), lr)]
        if lr_third is not None and lr_third != lr and len(parameters) > 2:
            self.slices = [(slice(0, 2), lr), (slice(2, None), lr_third)]  # λ has a rate of its own
        self.moments = memory.moments.clone()
        self.steps = torch.tensor(float(memory.steps), device=parameters.device)

    def step(self, gradient: Tensor) -> None:
        counts = [self.steps.clone() for _ in self.slices]
        for (rows, lr), count in zip(self.slices, counts, strict=True):
            if self.optimizer == "sgd":
                self.parameters[rows].add_(gradient[rows], alpha=-lr)
            else:
                self._adam(self.parameters[rows], gradient[rows], self.moments[:, rows], count, lr)
        self.steps += 1

    def _adam(self, parameters: Tensor, gradient: Tensor, moments: Tensor, steps: Tensor, lr: float) -> None:
        adam(
            [parameters],
            [gradient],
            [moments[0]],
            [moments[1]],
            [],
            [steps],  # counted up by the kernel
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=self.beta2,
            lr=lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    def memory(self) -> Memory:
        return Memory(self.moments, int(self.steps))
