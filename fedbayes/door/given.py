"""Data and networks as Python objects, made into the settings of a run."""

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedbayes.errors import CommandError
from fedbayes.protocol import objects
from fedbayes.protocol.settings import FUNCTION
from fedbayes.protocol.user_code import UserCodeError, find

PARTS = {2: ("x", "y"), 4: ("x_train", "y_train", "x_test", "y_test")}
TAKES = "dataset takes a list with one (x_train, y_train, x_test, y_test) or (x, y) for each client, or one (x, y)"
OFFERED = ("inputs", "classes")  # what a function that makes a network may ask for, by name
DIGITS = 12

Arrays = dict[str, np.ndarray]


def dataset_setting(thing: Any) -> tuple[str, int | None]:
    """The setting for data that are text or objects, and how many clients they are for, if they say so."""
    if isinstance(thing, str) or hasattr(thing, "__fspath__"):
        return str(thing), None
    if not isinstance(thing, Sequence | Mapping) or not len(thing):
        raise CommandError(f"{TAKES}, not {type(thing).__name__}.")
    if isinstance(thing, Mapping) or all(map(_is_array, thing)):
        pool = _arrays(thing, "dataset")
        if len(pool) == len(PARTS[4]):
            raise CommandError(f"{TAKES}; these are four arrays that no list holds.")
        return objects.keep(objects.POOL + digest([pool]), lambda: pool), None
    shares = [_arrays(one, f"dataset[{place}]") for place, one in enumerate(thing)]
    return objects.keep(objects.DATA + digest(shares), lambda number: shares[number]), len(shares)


def _arrays(thing: Any, name: str) -> Arrays:
    if not isinstance(thing, Mapping):
        parts = PARTS.get(len(thing) if isinstance(thing, Sequence) else 0)
        if parts is None:
            raise CommandError(f"{TAKES}; {name} is {type(thing).__name__}.")
        thing = dict(zip(parts, thing, strict=True))
    return {str(key): _array(value) for key, value in thing.items()}


def _array(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__")  # numpy's, torch's and pandas' have it; tuples and lists have not


def digest(shares: Sequence[Arrays]) -> str:
    """Equal for equal arrays, whatever process they are in."""
    total = hashlib.sha256()
    for share in shares:
        for name, array in share.items():
            total.update(f"{name} {array.dtype.str} {array.shape}".encode())
            if array.dtype == object:
                total.update(repr(array.tolist()).encode())
            else:
                total.update(np.ascontiguousarray(np.atleast_1d(array)).view(np.uint8).data)
    return total.hexdigest()[:DIGITS]


def model_setting(thing: Any) -> str:
    """The setting for a network that is text, or a function or class that makes one.

    A function of a module that others can import is named by it, so that its models can be used anywhere.
    """
    if isinstance(thing, str):
        return thing
    if isinstance(thing, nn.Module):
        raise CommandError(
            "model takes a function that makes a network, such as lambda: nn.Linear(64, 10), not a network: a run "
            "makes several, each from its seed."
        )
    if not callable(thing):
        raise CommandError(
            f"model takes a name or a function that makes a network, not {type(thing).__name__}."
        )
    path = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
    asked = _asked(thing)
    if set(asked) == set(OFFERED) and FUNCTION.fullmatch(path) and not path.startswith("__main__:"):
        try:
            if find(path) is thing:
                return path
        except UserCodeError:
            pass
    name = getattr(thing, "__name__", "")
    name = name if name.isidentifier() and name.isascii() else "model"

    def make(inputs: tuple[int, ...], classes: int) -> Any:
        offered = {"inputs": inputs, "classes": classes}
        return thing(**{key: offered[key] for key in asked})

    return objects.keep(objects.PREFIX + name, make)


def _asked(make: Callable[..., Any]) -> list[str]:
    """Which of `OFFERED` it takes."""
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):  # of something that tells nothing
        return list(OFFERED)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return list(OFFERED)
    return [key for key in OFFERED if key in parameters]
