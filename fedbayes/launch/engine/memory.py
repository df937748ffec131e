"""Memory that several processes see: arrays cross in it, while pipes carry what is said of them.

It has no name in any folder, so that nothing is left of it when its processes are gone.
"""

import mmap
import os
import tempfile

Place = tuple[int, int]  # where it begins, and how long it is


class Memory:
    """One piece, which its one writer makes larger when it needs more; readers follow."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _unnamed() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def write(self, start: int, data: bytes) -> Place:
        end = start + len(data)
        if os.fstat(self.descriptor).st_size < end:
            os.ftruncate(self.descriptor, end)
        self._reach(end)[start:end] = data
        return start, len(data)

    def read(self, place: Place) -> bytes:
        start, length = place
        return self._reach(start + length)[start : start + length]

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self.descriptor)

    def _reach(self, end: int) -> mmap.mmap:
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return self._map


def _unnamed() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedbayes")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
