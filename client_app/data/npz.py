"""Arrays in an .npz file. Nothing in it is ever unpickled: an array of Python objects is an error."""

import zipfile
from pathlib import Path

import numpy as np

from client_app.data.errors import DataError

LARGE, RATIO = 2**30, 300  # bytes; zeros are packed a thousandfold, numbers of use a few times


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """All arrays of the file by their names."""
    if not file.is_file():
        raise DataError(f"There is no file {file}.")
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file} is no .npz file or is cut off; save x and y with numpy.savez.")
    try:
        with zipfile.ZipFile(file) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
        if size > LARGE and size > RATIO * file.stat().st_size:
            raise DataError(
                f"{file} has {file.stat().st_size} bytes and would unpack to {size}: it is taken for a zip bomb."
            )
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except DataError:
        raise
    except Exception as error:  # whatever a broken file makes numpy raise; its zip may be broken in many ways
        if "allow_pickle" in str(error):
            raise DataError(
                f"{file} holds pickled Python objects, which are never loaded; save plain arrays of numbers or "
                "text with numpy.savez."
            ) from None
        raise DataError(f"{file} is damaged ({str(error)[:200]}).") from None
