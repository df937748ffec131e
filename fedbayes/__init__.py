"""fedbayes: personal, sparse and clustered Bayesian federated learning on Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbayes.personal import Personal

__all__ = ["Personal", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`from fedbayes import Personal` without torch for those who need only a setting or the version."""
    if name == "Personal":
        return import_module("fedbayes.personal").Personal
    raise AttributeError(f"module 'fedbayes' has no attribute {name!r}")
