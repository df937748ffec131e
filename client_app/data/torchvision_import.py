"""Import torchvision when it is needed, also beside a CPU-only torch.

The torchvision wheel of PyPI is built for the CUDA torch of PyPI. Beside a CPU build of torch its compiled
operators cannot be loaded, and then `import torchvision` itself fails ("operator torchvision::nms does not
exist"), although reading data sets needs none of them. Declaring the two operators that the import touches is
enough. It is done only after a plain import has failed, so a matching torchvision stays as it is.
"""

import importlib
import sys
import warnings
from types import ModuleType

import torch

_declared: list[torch.library.Library] = []  # an operator lives only as long as its Library object


def torchvision_datasets() -> ModuleType:
    """The module `torchvision.datasets`."""
    with warnings.catch_warnings():
        # The compiled image reader is missing in the same case; images are not read from JPEG or PNG here.
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        try:
            return importlib.import_module("torchvision.datasets")
        except RuntimeError as error:
            if "torchvision::" not in str(error) or _declared:
                raise
        _forget_torchvision()
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
        return importlib.import_module("torchvision.datasets")


def _forget_torchvision() -> None:
    """Drop what the failed import left behind; a second import would find it half made."""
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
