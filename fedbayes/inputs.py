"""Examples that a user brings: an .npz file with x, and with y where the classes are known."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbayes.errors import ModelError


@dataclass(frozen=True)
class Inputs:
    """n examples as they lie in the file; a model scales them itself."""

    x: Tensor
    y: Tensor | None  # places in the model's list of classes
    names: list[str]  # what the user calls each example

    def labels(self, file: str) -> Tensor:
        if self.y is None:
            raise ModelError(f'{file} lacks the array "y": the class of each example.')
        return self.y


def read_inputs(file: str, classes: Sequence[str]) -> Inputs:
    """ModelError names the file and what is wrong with it."""
    arrays = _read_npz(Path(file))
    if "x" not in arrays or arrays["x"].dtype.kind not in "biuf" or arrays["x"].ndim < 2:
        raise ModelError(f'{file} lacks the array "x" with numbers, one example a row.')
    x = arrays["x"] if arrays["x"].dtype == np.uint8 else arrays["x"].astype(np.float32)
    if len(x) == 0:
        raise ModelError(f"{file} has no examples.")
    y = None
    if "y" in arrays:
        words = arrays["y"].reshape(-1).astype(str).tolist()
        if len(words) != len(x):
            raise ModelError(f"{file} has {len(x)} examples in x but {len(words)} labels in y.")
        if unknown := next((word for word in words if word not in classes), None):
            raise ModelError(f'{file} has the label "{unknown}"; the model knows {", ".join(classes)}.')
        y = torch.tensor([list(classes).index(word) for word in words])
    return Inputs(torch.from_numpy(np.ascontiguousarray(x)), y, [str(i) for i in range(len(x))])


def _read_npz(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        raise ModelError(f"There is no file {file}.")
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ModelError(f"{file} is no .npz file or is damaged ({error}).") from None
