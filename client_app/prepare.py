"""What the settings do to training data before anything is learned from them; test data stay as they are."""

import torch
from torch import Tensor

from client_app.data import DataError

Pair = tuple[Tensor, Tensor]  # x and y


def random_labels(y: Tensor, classes: int, generator: torch.Generator) -> Tensor:
    """Labels that mean nothing: each is drawn from all classes alike; numbers change places."""
    if not classes:
        return y[torch.randperm(len(y), generator=generator)]
    return torch.randint(2 if y.ndim == 2 else classes, y.shape, generator=generator)


def hold_out(x: Tensor, y: Tensor, fraction: float, generator: torch.Generator) -> tuple[Pair, Pair | None]:
    """What is left for training, and the share that is held out for validation: None without a fraction.

    At least one example is left on either side.
    """
    if not fraction:
        return (x, y), None
    n = len(y)
    if n < 2:
        raise DataError(f"validation-fraction={fraction} takes at least 2 training examples, not {n}.")
    order = torch.randperm(n, generator=generator)
    held = min(max(round(fraction * n), 1), n - 1)
    out, kept = order[:held].sort().values, order[held:].sort().values
    return (x[kept], y[kept]), (x[out], y[out])
