"""A folder of images, with one folder in it for each class."""

from pathlib import Path

import numpy as np

from client_app.data.errors import DataError


def read_images(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, height, width, channels) of bytes and the names of their classes.

    In colour, unless all are grey. `size` > 0 makes all of them squares of so many pixels; 0 takes them as they are.
    """
    from PIL import Image  # comes with torchvision; only these users need it

    readable = {suffix.lower() for suffix in Image.registered_extensions()}
    files = []
    for group in visible(folder):
        if not group.is_dir():
            raise DataError(f"{group} is no folder; {folder} takes one folder of images for each class.")
        found = [file for file in visible(group) if file.suffix.lower() in readable]
        if not found:
            raise DataError(f"{group} has no images: a class without examples.")
        files += found
    if not files:
        raise DataError(f"{folder} is empty; it takes one folder of images for each class.")
    images = []
    for file in files:
        try:
            with Image.open(file) as opened:
                if opened.mode[0] in "IF":  # converted, they would be cut off at 255
                    raise DataError(
                        f"{file} has more than 8 bits a pixel; save it with 8, or use an .npz file."
                    )
                kept = opened.convert("L" if opened.mode in ("1", "L") else "RGB")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{file} is no image or is damaged ({error}).") from None
        images.append(kept.resize((size, size)) if size else kept)
    mode = "L" if all(image.mode == "L" for image in images) else "RGB"
    for file, image in zip(files, images, strict=True):
        if image.size != images[0].size:
            raise DataError(
                f"{file} has {image.width}×{image.height} pixels and {files[0].name} "
                f"{images[0].width}×{images[0].height}; image-size=32, say, makes all of them 32×32."
            )
    x = np.stack([np.asarray(image.convert(mode)) for image in images])
    return x.reshape(*x.shape[:3], -1), np.array([file.parent.name for file in files])


def visible(folder: Path) -> list[Path]:
    """What is in a folder, sorted by name, without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder} cannot be read ({error.strerror}).") from None
