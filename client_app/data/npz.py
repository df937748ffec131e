"""Arrays in an .npz file. Nothing in it is ever unpickled: an array of Python objects is an error."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from client_app.data.errors import DataError


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """All arrays of the file by their names."""
    if not file.is_file():
        raise DataError(f"There is no file {file}.")
    if not zipfile.is_zipfile(file):
        raise DataError(f"{file} is no .npz file or is cut off; save x and y with numpy.savez.")
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{file} holds pickled Python objects, which are never loaded; save plain arrays of numbers or "
                "text with numpy.savez."
            ) from None
        raise DataError(f"{file} is damaged ({error}).") from None
