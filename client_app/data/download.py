"""Fetch official data files over the network, with a bound on the wait.

torchvision knows the mirrors and checksums, but its own download has no time limit (behind a firewall that
drops packets it hangs for minutes), prints a progress bar per file, and writes in place, so two processes at
once can spoil each other's files. Here a file is complete in memory and checked before it gets its name.
"""

import hashlib
import queue
import threading
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

WAIT = 6.0  # seconds for a mirror to answer, and for each further piece of the file


def fetch(mirrors: Sequence[str], name: str, md5: str) -> bytes:
    """The file from the first mirror that has it; an OSError with the last reason when none does."""
    reason = "no mirror is known"
    for mirror in mirrors:
        try:
            with _open(mirror + name) as response:
                content: bytes = response.read()
        except (OSError, HTTPException) as error:  # URLError and time-outs are OSErrors
            reason = str(getattr(error, "reason", error)) or type(error).__name__
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            return content
        reason = f"{mirror}{name} has a wrong checksum"
    raise OSError(reason)


def _open(url: str) -> Any:
    """`urlopen` that gives up after WAIT seconds.

    urlopen's own time limit covers neither the look-up of the name nor several addresses tried in turn, so a
    thread asks and is left behind when it takes too long.
    """
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(urlopen(Request(url, headers={"User-Agent": "fedbayes"}), timeout=WAIT))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=WAIT)
    except queue.Empty:
        raise TimeoutError(f"no answer within {WAIT:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def write_whole(target: Path, content: bytes) -> None:
    """Write under another name, then rename: no other process ever sees half a file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        part.write_bytes(content)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
