"""The client step with its update fused into a few passes, by the C of kernels.py.

Where that cannot be compiled, or the weights are on a GPU, NotCompiled says so, and the PlainSteps of
inference/update.py do the same. The last sample's gradients, the step on q and the step on w are one pass, so `add` and
`step_q` only note what is due; `draw` and `step_w` do it.
"""

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import byref

import torch
from torch import Tensor

from bayes_core.families import Family
from bayes_core.fast.compiled import NotCompiled, library
from bayes_core.inference.optimisers import BETA1, Optimiser


class KernelState(ctypes.Structure):
    _fields_ = [
        ("n", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("q", "w", "sigma_q", "noise", "thetas", "sum", "at_theta", "at_mirror")
        ),
        ("zeta", ctypes.c_float),
        ("coldness", ctypes.c_float),
    ]


class AdamState(ctypes.Structure):
    _fields_ = [
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        *((name, ctypes.c_float) for name in ("keep", "take", "size", "size_third", "root")),
    ]


class FusedSteps:
    """In place on the parameters of two Adams, in float32 on the CPU; NotCompiled where that is not so."""

    def __init__(self, family: Family, q_optimiser: Optimiser, w_optimiser: Optimiser, zeta: float) -> None:
        q, w = q_optimiser.parameters, w_optimiser.parameters
        if not family.uncertain:
            raise NotCompiled(f"it is made for distributions with uncertainty, not {family.name}")
        if q_optimiser.optimizer != "adam":
            raise NotCompiled(f"it is made for adam, not {q_optimiser.optimizer}")
        if q.device.type != "cpu" or q.dtype != torch.float32:
            raise NotCompiled(f"it is made for float32 on the CPU, not {q.dtype} on {q.device}")
        found = library()
        if isinstance(found, str):
            raise NotCompiled(found)
        self.library = found
        self.q_optimiser, self.w_optimiser = q_optimiser, w_optimiser
        self.gated = family.gated
        self.thetas, self.noise = torch.empty(2, 2, q.shape[1])
        self.sigma = torch.empty_like(q[0])
        self.sum = torch.zeros_like(q)  # of the samples before the last
        self.summed = False
        self.added: Sequence[Tensor] = ()  # the last sample's gradients
        self.q_due = False
        self.state = KernelState(
            q.shape[1],
            *(row.data_ptr() for row in (q, w, self.sigma, self.noise, self.thetas, self.sum)),
            zeta=zeta,
            coldness=1 / family.temperature,
        )
        self.library.find_sigma(byref(self.state), 0, q.shape[1])

    def draw(self, generator: torch.Generator, gates: torch.Generator | None) -> None:
        if self.q_due:
            self._step(both=False)
        elif len(self.added):
            self._sum()
        self.noise[0].normal_(generator=generator)
        if self.gated:
            self.noise[1].uniform_(1e-7, 1 - 1e-7, generator=gates or generator)
        self.library.draw(byref(self.state), self.gated, 0, self.state.n)

    def add(self, gradients: Sequence[Tensor]) -> None:
        self.added = gradients

    def step_q(self) -> None:
        self.q_due = True

    def step_w(self) -> None:
        self._step(both=True)

    def _sum(self) -> None:
        """A sample that is not the last of its step on q."""
        for begin, end in self._parts(self.added):
            self.library.add(byref(self.state), self.gated, begin, end)
        self.summed = True

    def _step(self, both: bool) -> None:
        """On q, with the last sample's gradients and those that were summed before; then, if `both`, on w."""
        of_q = adam_state(self.q_optimiser)
        of_w = adam_state(self.w_optimiser) if both else of_q
        for begin, end in self._parts(self.added):
            self.library.step(
                byref(self.state), byref(of_q), byref(of_w), self.gated, self.summed, both, begin, end
            )
        if self.summed:
            self.sum.zero_()
        self.summed, self.q_due, self.added = False, False, ()

    def _parts(self, gradients: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
        """From where to where each parameter lies, with the state's pointers on its two gradients."""
        end, half = 0, len(gradients) // 2
        for at_theta, at_mirror in zip(gradients[:half], gradients[half:], strict=True):
            at_theta, at_mirror = at_theta.contiguous(), at_mirror.contiguous()
            begin, end = end, end + at_theta.numel()
            self.state.at_theta = at_theta.data_ptr() - 4 * begin  # indexed from `begin` on
            self.state.at_mirror = at_mirror.data_ptr() - 4 * begin
            yield begin, end


def adam_state(optimiser: Optimiser) -> AdamState:
    """Adam's moments and the size of its next step, which is counted."""
    optimiser.steps += 1
    steps = int(optimiser.steps)
    sizes = [rate / (1 - BETA1**steps) for rate in optimiser.rates]
    first, second = optimiser.moments
    beta2 = optimiser.beta2
    return AdamState(
        first.data_ptr(), second.data_ptr(), beta2, 1 - beta2, *sizes, root=(1 - beta2**steps) ** -0.5
    )
