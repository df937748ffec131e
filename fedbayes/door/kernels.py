"""Where the compiled kernels of a run from Python are kept: a script leaves no file outside its out-dir."""

import atexit
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

FOLDER = "FEDBAYES_KERNELS"  # at which bayes_core/fast/compiled.py looks


@contextmanager
def own_kernels(out_dir: Path) -> Iterator[None]:
    """What the user's cache lacks is built in the out-dir. A folder that the user has named is left alone."""
    named = FOLDER in os.environ
    if not named:
        os.environ[FOLDER] = str(_folder_in(out_dir))
    try:
        yield
    finally:
        if not named:
            os.environ.pop(FOLDER, None)


@cache
def _folder_in(out_dir: Path) -> Path:
    """Of this process, which takes it away when it ends: code that lies there already might be anybody's."""
    folder = out_dir / f".kernels-{secrets.token_hex(8)}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
