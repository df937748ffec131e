"""Data from a user's Python function `package.module:function`: for everything that no file format here fits."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from client_app.data.errors import DataError
from client_app.data.examples import SPLIT, WHOLE
from fedbayes.protocol.user_code import UserCodeError, find, problem

ARGUMENTS = ("site", "number", "clients", "path", "seed")  # what a function may ask for, by name


def call(name: str, offered: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The function's arrays, under the names that an .npz has for them.

    It returns (x, y), (x_train, y_train, x_test, y_test), or a dictionary; arrays or tensors.
    """
    try:
        function = find(name)
        asked = inspect.signature(function).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in asked.values())
        given = {key: value for key, value in offered.items() if takes_all or key in asked}
        returned = function(**given)
    except UserCodeError as error:
        raise DataError(str(error)) from None
    except Exception as error:  # whatever the user's code raises
        raise DataError(f"{name} failed with {problem(error)}.") from error
    if isinstance(returned, Mapping):
        return {str(key): _array(value) for key, value in returned.items()}
    names = {2: WHOLE, 4: SPLIT}.get(len(returned) if isinstance(returned, tuple | list) else 0)
    if names is None:
        raise DataError(
            f"{name} returned {type(returned).__name__}; it takes (x, y), (x_train, y_train, x_test, y_test) or a "
            "dictionary of these."
        )
    return {key: _array(value) for key, value in zip(names, returned, strict=True)}


def _array(value: object) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
