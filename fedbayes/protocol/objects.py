"""Data and networks that were given as Python objects, under the names that settings have for them.

A setting is text, and an object has none that another process could find it by. So it is kept here, in the process
where it was given, under a name `object:…`; the processes of a run are copies of that one and have it too. The name of
data ends with a digest of them: other data have another name.
"""

from typing import Any

PREFIX = "object:"
DATA, POOL = f"{PREFIX}data_", f"{PREFIX}pool_"  # one share for each client; examples that a layout deals

_given: dict[str, Any] = {}


def keep(name: str, thing: Any) -> str:
    """The name under which this process, and copies of it, have the thing from now on."""
    _given[name] = thing
    return name


def is_object(name: str) -> bool:
    return name.startswith(PREFIX)


def is_pool(name: str) -> bool:
    return name.startswith(POOL)


def given(name: str) -> Any:
    """The thing itself, or LookupError."""
    return _given[name]
