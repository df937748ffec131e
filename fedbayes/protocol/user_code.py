"""A user's own function, by its name `package.module:function`, or by that of an object that was given from Python."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from fedbayes.protocol import objects


class UserCodeError(ValueError):
    """A function that cannot be found or used; its text is one sentence for the user."""


def look_here() -> None:
    """Have modules found in the folder where a command was started, as the run's processes find them."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)


def find(name: str) -> Callable[..., Any]:
    """The function; its module is looked for where Python looks for every module."""
    if objects.is_object(name):
        return _given(name)
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except ModuleNotFoundError as error:
        where = "" if error.name and module.startswith(error.name) else f", which {module} imports"
        raise UserCodeError(
            f'{name} cannot be imported: there is no module "{error.name}"{where} on this machine; start from the '
            "folder that holds it, or name that folder in PYTHONPATH."
        ) from None
    except AttributeError:
        raise UserCodeError(f'{name} cannot be used: {module} has no "{function}".') from None
    except Exception as error:  # whatever the user's module does when it is imported
        raise UserCodeError(f"{name} cannot be imported: {problem(error)}.") from error
    if not callable(found):
        raise UserCodeError(f"{name} is {type(found).__name__}, not a function.")
    return found  # type: ignore[no-any-return]


def _given(name: str) -> Callable[..., Any]:
    try:
        found: Callable[..., Any] = objects.given(name)
    except LookupError:
        raise UserCodeError(
            f"{name} was given as a Python object, which is not here; give the same again, in Python: "
            "fedbayes.run(resume=…) and fedbayes.load(…) take dataset=… and model=…"
        ) from None
    return found


def problem(error: Exception) -> str:
    """An exception of the user's code on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def find_half(package: str, method: str, foreign: str) -> Any:
    """One half of a method: what `package.METHOD` calls METHOD; for `package.module`, its module `foreign`.

    UserCodeError says in one sentence what is missing.
    """
    name = f"{method}.{foreign}" if "." in method else f"{package}.{method}"
    try:
        return import_module(name).METHOD
    except ModuleNotFoundError as error:
        if "." not in method and error.name == name:
            where = name.replace(".", "/")
            raise UserCodeError(f'There is no method "{method}": {where}.py is missing.') from None
        if "." not in method:
            raise
        what = f'there is no module "{error.name}" on this machine'
        raise UserCodeError(
            f"method={method} cannot be imported: {what}; the package needs the modules server and client, each with "
            "a METHOD; start from the folder that holds it, or name that folder in PYTHONPATH."
        ) from None
    except AttributeError as error:
        if "METHOD" not in str(error):
            raise
        raise UserCodeError(f"method={method} cannot be used: {name} has no METHOD.") from None
    except Exception as error:
        if "." not in method:
            raise
        raise UserCodeError(f"method={method} cannot be imported: {problem(error)}.") from error
