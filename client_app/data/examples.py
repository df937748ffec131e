"""Examples from someone's own arrays: what a file or a function gives, checked once and in one shape.

Every complaint is one sentence that begins with the source, a file's path or a function's name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from client_app.data.errors import DataError
from client_app.data.tables.table import Table
from fedbayes.protocol.agreement import AUTO, SEQUENCES, TOKENS, in_order

WHOLE, SPLIT = ("x", "y"), ("x_train", "y_train", "x_test", "y_test")
CHANNELS = (1, 3, 4)
BRIGHTEST = 255


@dataclass(frozen=True)
class Examples:
    """All examples of one source; where it has a test set of its own, that comes last."""

    # uint8 images (n, channels, height, width), 0 … 255, float32 images or vectors (n, features), float32 sequences
    # (n, steps, features), or int64 tokens (n, steps)
    x: Tensor
    y: np.ndarray  # int64 class numbers, float32 targets, or int64 rows of 0 and 1: several labels an example
    classes: tuple[str, ...]  # in the order of the numbers; empty where the targets are numbers
    declared: bool = False  # whether `classes` is the whole list in its order, or only what was found
    n_test: int | None = None  # how many, at the end, the source itself keeps for the test
    features: tuple[str, ...] = ()  # the names of the columns of x, where they have names
    table: Table | None = None  # where x are rows of a table: 0 stands in x for what is no number


def read_arrays(
    arrays: Mapping[str, np.ndarray],
    source: str,
    declared: Sequence[str],
    task: str = "auto",
    form: str = AUTO,
) -> Examples:
    """x and y, or x_train, y_train, x_test and y_test; perhaps `classes`, the names in their order."""
    names = SPLIT if any(name in arrays for name in SPLIT) else WHOLE
    for name in names:
        if name not in arrays:
            raise DataError(
                f'{source} lacks the array "{name}"; it takes x and y, or x_train, y_train, x_test and y_test.'
            )
    parts = [
        (read_inputs(arrays[x], x, source, form), read_column(arrays[y], y, source))
        for x, y in zip(names[::2], names[1::2], strict=True)
    ]
    for (x, y), name in zip(parts, names[::2], strict=True):
        if len(x) != len(y):
            other = name.replace("x", "y", 1)
            raise DataError(f"{source} has {len(x)} examples in {name} but {len(y)} in {other}.")
    if len({(x.shape[1:], x.dtype) for x, _ in parts}) > 1:
        raise DataError(
            f"{source} has inputs of shape {tuple(parts[0][0].shape[1:])} in x_train but "
            f"{tuple(parts[1][0].shape[1:])} in x_test, or of another type."
        )
    x = torch.cat([part for part, _ in parts]) if len(parts) > 1 else parts[0][0]
    y = np.concatenate([part for _, part in parts])
    if len(y) == 0:
        raise DataError(f"{source} has no examples.")
    named = declared or (
        [str(name) for name in _text(arrays["classes"]).tolist()] if "classes" in arrays else []
    )
    labels, classes = read_targets(y, source, named, task)
    n_test = len(parts[1][1]) if len(parts) > 1 else None
    return Examples(x, labels, classes, declared=bool(named) or labels.ndim == 2, n_test=n_test)


def read_inputs(x: np.ndarray, name: str, source: str, form: str = AUTO) -> Tensor:
    """Images with their channels first, or vectors; what is said to be tokens or sequences, as it is."""
    x = np.asarray(x)
    if form == TOKENS:
        return _tokens(x, name, source)
    if form == SEQUENCES and (x.dtype.kind not in "biuf" or x.ndim != 3):
        raise DataError(
            f"{source} has {name} of shape {x.shape} and type {x.dtype}; inputs=sequences takes numbers "
            "(n, steps, features)."
        )
    if form == SEQUENCES:
        return _finite(np.ascontiguousarray(x, dtype=np.float32), name, source)
    if x.dtype.kind not in "biuf" or not 1 <= x.ndim <= 4:
        raise DataError(
            f"{source} has {name} of shape {x.shape} and type {x.dtype}; it takes numbers: images "
            "(n, height, width[, channels]) or vectors (n, features)."
        )
    if x.ndim == 4 and x.shape[3] in CHANNELS:
        x = x.transpose(0, 3, 1, 2)
    elif x.ndim == 4 and x.shape[1] not in CHANNELS:
        raise DataError(f"{source} has {name} of shape {x.shape}; images take 1, 3 or 4 channels.")
    elif x.ndim in (1, 3):  # one feature, or one channel
        x = x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4:
        return torch.from_numpy(np.ascontiguousarray(x))
    return _finite(np.ascontiguousarray(x, dtype=np.float32), name, source)


def _tokens(x: np.ndarray, name: str, source: str) -> Tensor:
    """Whole numbers that stay such: places in a network's table."""
    if x.dtype.kind not in "iu" or x.ndim < 2 or (x.size and x.min() < 0):
        raise DataError(
            f"{source} has {name} of shape {x.shape} and type {x.dtype}; inputs=tokens takes whole numbers from 0 on "
            "(n, steps)."
        )
    return torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64))


def _finite(numbers: np.ndarray, name: str, source: str) -> Tensor:
    if not np.isfinite(numbers).all():
        row = int(np.argwhere(~np.isfinite(numbers))[0, 0])
        raise DataError(
            f"{source} has a value in {name} that is not finite (NaN or infinite), first in example {row}."
        )
    return torch.from_numpy(numbers)


def read_column(y: np.ndarray, name: str, source: str) -> np.ndarray:
    y = _text(np.asarray(y))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2 and y.dtype.kind in "biuf" and bool(np.isin(y, (0, 1)).all()):
        return y.astype(np.int64)
    if y.ndim != 1 or y.dtype.kind not in "biufU":
        raise DataError(
            f"{source} has {name} of shape {y.shape} and type {y.dtype}; it takes one label or number an "
            "example, or a row of 0 and 1."
        )
    return y


def _text(array: np.ndarray) -> np.ndarray:
    return array.astype(str) if array.dtype.kind == "S" else array


def read_targets(
    y: np.ndarray, source: str, declared: Sequence[str], task: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers and class names, or numbers and no names.

    Whole numbers and text are classes, other numbers are targets of a regression, unless `task` says so. Rows of 0 and
    1 are several labels an example.
    """
    if y.ndim == 2:
        names = tuple(declared) or tuple(map(str, range(y.shape[1])))
        if len(names) != y.shape[1] or task == "regression":
            raise DataError(
                f"{source} has {y.shape[1]} labels an example, but {len(names)} classes, or task={task}."
            )
        return y, names
    if y.dtype.kind == "f":
        if not np.isfinite(y).all():
            row = int(np.argwhere(~np.isfinite(y))[0, 0])
            raise DataError(f"{source} has a target that is not finite, first in example {row}.")
        whole = bool((y == np.round(y)).all())
        if task == "regression" or (task == "auto" and not whole):
            return y.astype(np.float32), ()
        if not whole:
            raise DataError(f"{source} has targets that are no whole numbers; task=regression takes them.")
        y = y.astype(np.int64)
    elif task == "regression":
        if y.dtype.kind == "U":
            raise DataError(f'{source} has the text "{y[0]}" as a target; task=regression takes numbers.')
        return y.astype(np.float32), ()
    return _numbers(y, source, declared)


def _numbers(y: np.ndarray, source: str, declared: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    found, numbers = np.unique(y.astype(np.int64) if y.dtype.kind != "U" else y, return_inverse=True)
    words = [str(label) for label in found.tolist()]
    if not declared:
        if y.dtype.kind != "U" and found[0] < 0:
            raise DataError(
                f"{source} has the label {found[0]}; labels count from 0, unless classes names them."
            )
        classes = in_order(words)
        place = np.array([classes.index(word) for word in words])
        return place[numbers], classes
    if len(set(declared)) != len(declared):
        raise DataError(f"{source} or classes names a class twice: {', '.join(declared)}.")
    # Numbers stand for themselves where the classes are numbers too, else for a place among the names.
    by_place = y.dtype.kind != "U" and not set(words) <= set(declared)
    known = [str(place) for place in range(len(declared))] if by_place else list(declared)
    for word in words:
        if word not in known:
            raise DataError(
                f'{source} has the label "{word}", which is not among the classes {_list(declared)}.'
            )
    return np.array([known.index(word) for word in words])[numbers], tuple(declared)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
