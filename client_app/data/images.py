"""A folder of images: with one folder in it for each class, or, without classes, of image files alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from client_app.data.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


def read_images(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, height, width, channels) of bytes and the names of their classes.

    In colour, unless all are grey. `size` > 0 makes all of them squares of so many pixels; 0 takes them as they are.
    """
    files = files_by_class(folder)
    return stack_images(files, size), np.array([file.parent.name for file in files])


def files_by_class(folder: Path) -> list[Path]:
    """The image files of a folder that has one folder for each class."""
    files = []
    for group in visible(folder):
        if not group.is_dir():
            raise DataError(f"{group} is no folder; {folder} takes one folder of images for each class.")
        found = image_files(group)
        if not found:
            raise DataError(f"{group} has no images: a class without examples.")
        files += found
    if not files:
        raise DataError(f"{folder} is empty; it takes one folder of images for each class.")
    return files


def image_files(folder: Path) -> list[Path]:
    """The images right in a folder; what has another ending is left alone."""
    from PIL import Image  # comes with torchvision; only these users need it

    readable = {suffix.lower() for suffix in Image.registered_extensions()}
    return [file for file in visible(folder) if file.suffix.lower() in readable]


def stack_images(files: Sequence[Path], size: int, mode: str = "") -> np.ndarray:
    """Images (n, height, width, channels) of bytes; `mode` L is grey, RGB colour, empty: colour unless all are grey."""
    images = [_open(file, size) for file in files]
    mode = mode or ("L" if all(image.mode == "L" for image in images) else "RGB")
    for file, image in zip(files, images, strict=True):
        if image.size != images[0].size:
            raise DataError(
                f"{file} has {image.width}×{image.height} pixels and {files[0].name} "
                f"{images[0].width}×{images[0].height}; image-size=32, say, makes all of them 32×32."
            )
    x = np.stack([np.asarray(image.convert(mode)) for image in images])
    return x.reshape(*x.shape[:3], -1)


def _open(file: Path, size: int) -> "Image":
    from PIL import Image

    try:
        with Image.open(file) as opened:
            if opened.mode[0] in "IF":  # converted, they would be cut off at 255
                raise DataError(f"{file} has more than 8 bits a pixel; save it with 8, or use an .npz file.")
            kept = opened.convert("L" if opened.mode in ("1", "L") else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} is no image or is damaged ({error}).") from None
    return kept.resize((size, size)) if size else kept


def visible(folder: Path) -> list[Path]:
    """What is in a folder, sorted by name, without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}).") from None
