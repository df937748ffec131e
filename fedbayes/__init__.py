"""fedbayes: personal, sparse and clustered Bayesian federated learning on Flower."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbayes.model.personal import PersonalModel
    from fedbayes.model.personal import PersonalModel as Personal

__all__ = ["Personal", "PersonalModel", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`from fedbayes import PersonalModel` without torch for those who need only a setting or the version.

    `Personal` is its earlier name.
    """
    if name in ("Personal", "PersonalModel"):
        return import_module("fedbayes.model.personal").PersonalModel
    raise AttributeError(f"module 'fedbayes' has no attribute {name!r}")
