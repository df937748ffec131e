"""A pool: all examples of a data set together, before a layout deals them to clients."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Pool:
    """The examples of one or more data sets of the same shape, one data set after the other.

    Images stay uint8 (MNIST: 55 MB); only a client's share becomes float32.
    """

    inputs: Tensor  # uint8 images (n, channels, height, width), or float32 images or vectors (n, features)
    brightest: int  # of uint8 images
    labels: tuple[np.ndarray, ...]  # one array for each data set: int64 classes, or float32 targets
    classes: tuple[str, ...]  # empty where the targets are numbers
    features: tuple[str, ...] = ()  # the names of the columns of vectors, where they have names
    form: str = "auto"  # tokens or sequences, where inputs are said to be such

    def scaled(self, indices: np.ndarray) -> Tensor:
        """These inputs as float32: of images 0 → −1 and the brightest value → 1, both exactly."""
        inputs = self.inputs[torch.from_numpy(indices)]
        return inputs.float().div_(self.brightest / 2).sub_(1) if inputs.dtype == torch.uint8 else inputs

    def labels_of(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(np.concatenate(self.labels)[indices])
