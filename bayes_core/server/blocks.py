"""Long rows of numbers a block at a time, in threads."""

from collections.abc import Callable, Iterator
from threading import Thread

import torch

BLOCK = 32768  # numbers at a time: what is computed on the way stays in the processor's cache
ENOUGH = 16 * BLOCK  # numbers for a thread: fewer take less time than starting one beside PyTorch's own


def in_threads(size: int, work: Callable[[int, int], object]) -> None:
    """`work` on all of `size` numbers, a piece in each of PyTorch's threads; C gives the interpreter free meanwhile."""
    pieces = max(min(torch.get_num_threads(), size // ENOUGH), 1)
    ends = [size // BLOCK * piece // pieces * BLOCK for piece in range(pieces)] + [size]
    threads = [Thread(target=work, args=ends[piece : piece + 2]) for piece in range(1, pieces)]
    for thread in threads:
        thread.start()
    work(ends[0], ends[1])
    for thread in threads:
        thread.join()


def blocks(end: int, begin: int = 0) -> Iterator[slice]:
    """Slices that cover the numbers from `begin` to `end`, a block each."""
    return (slice(start, min(start + BLOCK, end)) for start in range(begin, end, BLOCK))
