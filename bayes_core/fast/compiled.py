"""The C of kernels.py as a library of this machine.

It is built once by the machine's C compiler (a few seconds) and kept in the user's cache, or in the folder that
`FEDBAYES_KERNELS` names, where every later process finds it (a millisecond). Where there is no compiler, `library`
says so, and plain PyTorch does the same.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from bayes_core.fast.kernels import SOURCE

OPTIONS = [
    "-O3",
    "-shared",
    "-fPIC",
    "-fno-fast-math",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
]
PATIENCE = 120  # seconds for the compiler
FOLDER = "FEDBAYES_KERNELS"  # where a library is kept that the user's cache lacks
# not `native`: a cache in a home folder may be shared by machines of different kinds
ARCHITECTURES = {"AVX512": ["-march=x86-64-v4", "-mprefer-vector-width=512"], "AVX2": ["-march=x86-64-v3"]}

pointer, switch, whole, number = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_double
MOMENTS = [pointer, whole, pointer, pointer, whole, pointer, number, number, whole, whole]
FINISH = [pointer, pointer, whole, pointer, number, whole, whole, whole]
TAKES: dict[str, list[Any]] = {  # what the functions of the library take
    "find_sigma": [pointer, whole, whole],
    "draw": [pointer, switch, whole, whole],
    "add": [pointer, switch, whole, whole],
    "step": [pointer, pointer, pointer, switch, switch, switch, whole, whole],
    "tally": [pointer, pointer, pointer, number, number, number, whole, whole],
    "tally_wide": [pointer, pointer, pointer, number, number, number, whole, whole],
    "hold": [pointer, pointer, whole, whole, whole, whole],
    "put_moments": MOMENTS,
    "put_gated_moments": MOMENTS,
    "finish_moments": FINISH,
    "finish_gated_moments": FINISH,
}


class NotCompiled(Exception):
    """Why it cannot be had here, in words."""


@cache
def library() -> ctypes.CDLL | str:
    """The compiled kernels of this machine, or why there are none; tried once in a process.

    The reason is words and no exception: one that is kept and raised again keeps every frame it went through.
    """
    try:
        file = cached()
        if not file.exists():
            build(file)
        found = ctypes.CDLL(str(file))
    except NotCompiled as reason:
        return str(reason)
    # a folder that cannot be written, a library that cannot be loaded
    except (OSError, RuntimeError) as error:
        return f"its library cannot be kept or loaded ({error})"
    for name, types in TAKES.items():
        getattr(found, name).argtypes = types
    return found


def cached() -> Path:
    """The library's file: another source, compiler options or kind of processor is another file."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    identity = repr((SOURCE, options(), platform.system(), platform.machine()))
    file = home / "fedbayes" / f"kernels-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"
    given = os.environ.get(FOLDER)
    return Path(given) / file.name if given and not file.exists() else file


def options() -> list[str]:
    return OPTIONS + ARCHITECTURES.get(torch.backends.cpu.get_cpu_capability(), [])


def build(file: Path) -> None:
    """Compiles into a file of its own, then renames: another process never loads half a library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise NotCompiled("there is no C compiler (cc, gcc or clang) on this machine")
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(suffix=".so", dir=file.parent)
    os.close(handle)
    try:
        command = [compiler, *options(), "-x", "c", "-", "-o", new]
        try:
            done = subprocess.run(
                command, input=SOURCE, text=True, capture_output=True, check=False, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            raise NotCompiled(f"{compiler} took more than {PATIENCE} s") from None
        if done.returncode:
            raise NotCompiled(f"{compiler} cannot build it: {done.stderr.strip()[-300:]}")
        Path(new).replace(file)
    finally:
        Path(new).unlink(missing_ok=True)
