"""Files that a crash leaves whole, and locks that it leaves free.

A file is written beside its place and renamed into it, so a reader finds the old one or the new one, never a mixture.
A lock is the kernel's (flock): it is free again when its process ends, however it ends.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

POLL = 0.1  # seconds between two attempts at a lock


def replace_file(path: Path, data: bytes, durable: bool = True) -> None:
    """The old file or the new one, whatever happens in between; `durable`: even if the machine loses power."""
    with replacing(path) as new:
        new.write_bytes(data)
        if durable:
            sync(new)


@contextmanager
def replacing(path: Path, shared: bool = False) -> Iterator[Path]:
    """A file to write, which takes the place of `path` at the end of the block; an exception leaves `path` as it was.

    `shared`: other processes may be writing the same file, so the unfinished one has a name of its own.
    """
    new = path.with_name(f".{uuid4().hex if shared else path.name}.tmp")
    try:
        yield new
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()  # a part of a file, on a disk that may be full
        raise


def append_text(path: Path, text: str, durable: bool = True) -> None:
    """More at the end of a file; `durable`: on the disk before this returns."""
    with path.open("a", newline="", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())


def sync(path: Path) -> None:
    """Have a file, or a folder's list of names, on the disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lock:
    """A lock that is held, until `close` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def take_lock(path: Path, wait: float, busy: Exception) -> Lock:
    """The lock on a folder, or on a file that is made for it; raises `busy` where others hold it for `wait` seconds."""
    flags = os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(path, flags, 0o666)
    deadline = time.monotonic() + wait
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return Lock(descriptor)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise busy from None
                time.sleep(POLL)
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def locked(path: Path, wait: float, busy: Exception) -> Iterator[None]:
    """The lock of `take_lock` for the length of a block."""
    lock = take_lock(path, wait, busy)
    try:
        yield
    finally:
        lock.close()


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock on this file; a file that cannot be read is not locked."""
    try:
        with path.open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
