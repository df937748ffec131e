"""Examples that a user gives to a trained model, read and scaled as for its training."""

from dataclasses import replace

import torch
from torch import Tensor

from client_app.data.client_data import moments
from client_app.data.errors import DataError
from client_app.data.new import NewExamples, read_new_examples
from fedbayes.errors import ModelError
from fedbayes.protocol.agreement import SEQUENCES, TOKENS, Agreement

__all__ = ["NewExamples", "labels", "read_examples", "scaled", "scaled_by_itself"]
Shape = tuple[int, ...]


def read_examples(source: str, agreement: Agreement, shape: Shape, image_size: int) -> NewExamples:
    """From an .npz file, a CSV table or a folder of images; ModelError names it and what is wrong with it."""
    try:
        found = read_new_examples(source, agreement, shape, image_size)
    except DataError as error:
        raise ModelError(str(error)) from None
    try:
        return replace(found, x=shaped(found.x, shape))
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from None


def labels(examples: NewExamples) -> Tensor:
    if examples.y is None:
        raise ModelError(
            f"{examples.source} does not say what each example is: the array y, or one more column."
        )
    return examples.y


def shaped(x: Tensor, shape: Shape) -> Tensor:
    """Images with their channels first; one channel needs no dimension of its own."""
    if x.ndim == 3 and len(shape) == 3 and shape[0] == 1:
        x = x[:, None]
    if x.ndim == 4 and tuple(x.shape[1:]) != shape and (x.shape[3], *x.shape[1:3]) == shape:
        x = x.permute(0, 3, 1, 2)
    if tuple(x.shape[1:]) != shape:
        raise ModelError(f"The model takes examples of shape {shape}, not {tuple(x.shape[1:])}.")
    return x


def scaled(x: Tensor, shape: Shape, agreement: Agreement) -> Tensor:
    """Examples of this shape as a network takes them: bytes of images from −1 to 1, other numbers as agreed."""
    x = shaped(x, shape)
    if _is_bytes(x):
        return x.float().div_(agreement.brightest / 2).sub_(1).contiguous()
    if agreement.form == TOKENS:
        if x.is_floating_point() or bool((x < 0).any()):
            raise ModelError("The model takes tokens: whole numbers from 0 on.")
        return x.long().contiguous()
    if not bool(x.isfinite().all()):
        raise ModelError("The examples have values that are not finite (NaN or infinite).")
    return agreement.scaled(x).float().contiguous()


def scaled_by_itself(agreement: Agreement, x: Tensor, y: Tensor) -> Agreement:
    """The agreement of a new site that scales by its own training data (`scale = site`)."""
    target = None if agreement.classes else moments(y[:, None])
    measured = not _is_bytes(x) and agreement.form != TOKENS
    return agreement.scaled_by(moments(x, agreement.form == SEQUENCES) if measured else None, target)


def _is_bytes(x: Tensor) -> bool:
    return x.dtype == torch.uint8 and x.ndim == 4
