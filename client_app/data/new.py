"""New examples for a model that is trained: from an .npz file, a CSV table or a folder of images, with or without y.

What a model needs to know of them is in its agreement (classes, columns) and its card (shape, size of images).
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from client_app.data.errors import DataError
from client_app.data.examples import read_column, read_inputs, read_targets
from client_app.data.images import files_by_class, image_files, stack_images, visible
from client_app.data.npz import read_npz
from client_app.data.tables.inputs import read_new
from fedbayes.protocol.agreement import AUTO, Agreement


@dataclass(frozen=True)
class NewExamples:
    """n examples in their own units; a model scales them itself."""

    source: str
    x: Tensor  # uint8 images (n, channels, height, width), or float32 images or vectors
    y: Tensor | None  # places in the model's list of classes, or numbers
    names: list[str]  # what the user calls each example
    aside: dict[str, list[str]] = field(default_factory=dict)  # columns that are no inputs: ids, say


def read_new_examples(
    source: str, agreement: Agreement, shape: tuple[int, ...], image_size: int
) -> NewExamples:
    """DataError names the file and what is wrong with it."""
    path, aside = Path(source).expanduser(), dict[str, list[str]]()
    if path.is_dir():
        x, y, names = _from_folder(path, shape, image_size)
    elif path.suffix == ".csv":
        x, y, aside = read_new(path, agreement, shape[0])
        names = [str(i) for i in range(len(x))]
    else:
        x, y = _from_npz(path)
        names = [str(i) for i in range(len(x))]
    inputs = read_inputs(x, "x", source, agreement.form if x.dtype != np.uint8 else AUTO)
    if len(inputs) == 0:
        raise DataError(f"{source} has no examples.")
    if y is None:
        return NewExamples(source, inputs, None, names, aside)
    if len(y) != len(inputs):
        raise DataError(f"{source} has {len(inputs)} examples in x but {len(y)} in y.")
    task = "classification" if agreement.classes else "regression"
    labels, _ = read_targets(y, source, agreement.classes, task)
    return NewExamples(source, inputs, torch.from_numpy(labels), names, aside)


def _from_npz(file: Path) -> tuple[np.ndarray, np.ndarray | None]:
    arrays = read_npz(file)
    if "x" not in arrays:
        raise DataError(f'{file} lacks the array "x"; it takes x, and y where the classes are known.')
    return arrays["x"], read_column(arrays["y"], "y", str(file)) if "y" in arrays else None


def _from_folder(
    folder: Path, shape: tuple[int, ...], size: int
) -> tuple[np.ndarray, np.ndarray | None, list[str]]:
    """Grey or in colour as the model takes them; named by their paths in the folder."""
    by_class = any(path.is_dir() for path in visible(folder))
    files = files_by_class(folder) if by_class else image_files(folder)
    if not files:
        raise DataError(f"{folder} has no images.")
    x = stack_images(files, size, "L" if shape[0] == 1 else "RGB")
    y = np.array([file.parent.name for file in files]) if by_class else None
    return x, y, [str(file.relative_to(folder)) for file in files]
