"""The formulas of a step as a few kernels of a GPU, by `torch.compile`.

A step of the DNN is 56 small operations, with spike and slab 105, and a GPU takes longer to be asked for one than to
do it. Of these 34 or 79 are the five formulas'; traced, they are some 8 or 14 (docs/scale.md). The network's passes,
the noise and the optimisers' fused steps are as they were. The first step of a process waits for the compilation.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch.utils._triton import has_triton

from bayes_core.fast.compiled import NotCompiled

FORMULAS = ("parts", "draws", "prior", "likelihood", "localize")
Formulas = TypeVar("Formulas")
Backend = str | Callable[..., Callable[..., Any]]


def traced(formulas: Formulas, backend: Backend = "inductor") -> Formulas:
    """The same formulas, compiled when they are first used; NotCompiled where PyTorch cannot do that."""
    if backend == "inductor" and not has_triton():
        raise NotCompiled("PyTorch compiles for a GPU with triton, which is not here")
    for name in FORMULAS:
        setattr(formulas, name, _compiled(getattr(formulas, name), backend))
    return formulas


def _compiled(formula: Callable[..., Any], backend: Backend) -> Callable[..., Any]:
    """For one network and temperature after the other: PyTorch keeps the kernels of eight and refuses the ninth."""
    from torch._C._dynamo.eval_frame import reset_code
    from torch._dynamo.exc import FailOnRecompileLimitHit  # whose import takes seconds

    made: Callable[..., Any] = torch.compile(formula, fullgraph=True, dynamic=False, backend=backend)

    @wraps(formula)
    def call(*arguments: Any) -> Any:
        try:
            return made(*arguments)
        except FailOnRecompileLimitHit:
            reset_code(formula.__code__)  # all are forgotten, and those that are met again compiled again
            return made(*arguments)

    return call
