"""fedbayes: personal, sparse and clustered Bayesian federated learning on Flower.

import fedbayes

result = fedbayes.run(method="pfedbayes", dataset="digits", clients=10, rounds=20)
result.rounds, result.clients, result.plot(), result.personal(3), result.report()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbayes.door.finished import compare, load
    from fedbayes.door.result import Result
    from fedbayes.door.run import run
    from fedbayes.errors import CommandError as Error
    from fedbayes.model.personal import PersonalModel
    from fedbayes.model.personal import PersonalModel as Personal

__all__ = ["Error", "Personal", "PersonalModel", "Result", "__version__", "compare", "load", "run"]
__version__ = "0.1.0"

_PLACES = {
    "Error": ("fedbayes.errors", "CommandError"),
    "Personal": ("fedbayes.model.personal", "PersonalModel"),  # its earlier name
    "PersonalModel": ("fedbayes.model.personal", "PersonalModel"),
    "Result": ("fedbayes.door.result", "Result"),
    "compare": ("fedbayes.door.finished", "compare"),
    "load": ("fedbayes.door.finished", "load"),
    "run": ("fedbayes.door.run", "run"),
}


def __getattr__(name: str) -> Any:
    """Torch and Flower are imported when something that needs them is asked for, not before."""
    if name not in _PLACES:
        raise AttributeError(f"module 'fedbayes' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
