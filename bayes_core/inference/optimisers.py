"""One optimiser step on one flat tensor, with its state as plain data.

The state is a tensor of its own because it lives longer than any process: it is stored with the personal
distribution and goes on in the next round. Adam is PyTorch's own fused kernel, called without the Python around it,
which would cost as much as the arithmetic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

OPTIMIZERS = ("adam", "sgd")
BETA1, EPSILON = 0.9, 1e-8


@dataclass(frozen=True)
class OptimizerState:
    """Adam's two moments as (2, *shape) and the number of steps taken; SGD uses the count alone."""

    moments: Tensor
    steps: int

    @classmethod
    def blank(cls, parameters: Tensor, optimizer: str) -> "OptimizerState":
        shape = (2, *parameters.shape) if optimizer == "adam" else (0,)
        return cls(torch.zeros(shape, device=parameters.device), 0)


class Optimiser:
    """Takes steps in place on `parameters`; `state()` gives what must be kept."""

    def __init__(
        self,
        parameters: Tensor,
        state: OptimizerState,
        optimizer: str,
        lr: float,
        lr_third: float | None = None,
        beta2: float = 0.999,
    ) -> None:
        if optimizer not in OPTIMIZERS or (optimizer == "adam") != (state.moments.numel() > 0):
            raise ValueError(
                f"No optimiser {optimizer!r} with this state; there are {' and '.join(OPTIMIZERS)}."
            )
        self.parameters = parameters
        self.optimizer = optimizer
        self.beta2 = beta2
        self.rates = lr, lr if lr_third is None else lr_third  # λ, the third row, has a rate of its own
        self.moments = state.moments.clone()
        self.steps = torch.tensor(float(state.steps), device=parameters.device)
        groups = [(slice(None), lr)]
        if self.rates[0] != self.rates[1] and len(parameters) > 2:
            groups = [(slice(0, 2), lr), (slice(2, None), self.rates[1])]
        # views made once: making them takes as long as a small sum
        self.groups = [(rows, parameters[rows], [m[rows] for m in self.moments], lr) for rows, lr in groups]

    def step(self, gradient: Tensor) -> None:
        self.steps += 1
        for rows, parameters, moments, lr in self.groups:
            part = gradient if len(self.groups) == 1 else gradient[rows]
            if self.optimizer == "sgd":
                parameters.add_(part, alpha=-lr)
            else:
                self._adam(parameters, part, moments, lr)

    def _adam(self, parameters: Tensor, gradient: Tensor, moments: list[Tensor], lr: float) -> None:
        torch._fused_adam_(
            [parameters],
            [gradient],
            [moments[0]],
            [moments[1]],
            [],
            [self.steps],
            lr=lr,
            beta1=BETA1,
            beta2=self.beta2,
            eps=EPSILON,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )

    def state(self) -> OptimizerState:
        return OptimizerState(self.moments, int(self.steps))
