"""The personal state on this client's disk: STATE/RUN/SITE/.

`personal.safetensors` is the state after the latest round trained here, `previous.safetensors` the one before
it; each is tagged with format version, run UUID and round, and carries a card that says what it is (card.py). The
state to start round t from is the latest with a tag below t, so a round that the server repeats after a crash begins
where it began the first time.

Files are replaced by rename: a crash at any moment leaves the previous or the new state, never a mixture.
Whoever works with a state holds a lock on its folder, which the kernel frees when that process ends.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from client_app.redact import SiteError, redact

FORMAT = 2
WITHOUT_CARD = 1  # an older format with the same tensors: a run can go on from it
LATEST, PREVIOUS = "personal.safetensors", "previous.safetensors"
LOCK_WAIT = 60.0  # seconds for a dead run's last ClientApp to end


@dataclass(frozen=True)
class Stored:
    """A state with the round after which it was saved."""

    round: int
    tensors: dict[str, Tensor]
    file: str


class Store:
    """One client's folder. `notes` collects, in words without paths, what the server should hear of."""

    def __init__(self, folder: Path, uuid: str, durable: bool, card: str = "") -> None:
        self.folder = folder
        self.uuid = uuid
        self.durable = durable  # fsync: on a real site, where the machine itself may lose power
        self.card = card
        self.notes: list[str] = []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The state for this process alone, after a bounded wait."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder, os.O_RDONLY)
        deadline = time.monotonic() + LOCK_WAIT
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise SiteError(
                            f"another process has been using the personal model of site {self.folder.name} for "
                            f"{LOCK_WAIT:g} s; is the site started twice?"
                        ) from None
                    time.sleep(0.1)
            yield
        finally:
            os.close(handle)

    def load(self, before: int) -> Stored | None:
        """The latest state with a tag below `before`; None for a client without a past."""
        for name in (LATEST, PREVIOUS):  # the second file is read only where the first does not serve
            state = self._read(name)
            if state and state.round < before:
                return state
        return None

    def save(self, server_round: int, tensors: Mapping[str, Tensor], started_from: Stored | None) -> None:
        """The state after `server_round`; the one it started from is kept beside it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tags = {"format": str(FORMAT), "uuid": self.uuid, "round": str(server_round), "card": self.card}
        # A name of its own: a late round may still be writing in another process.
        new = self.folder / f".{uuid4().hex}.tmp"
        try:
            save_file(
                {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, new, tags
            )
            if self.durable:
                self._sync(new)
        except (SafetensorError, OSError) as error:
            with suppress(OSError):
                new.unlink()  # a part of a file, on a disk that may be full
            raise _system_error(error, new) from None
        if started_from is not None and started_from.file == LATEST:
            link = self.folder / f".{uuid4().hex}.tmp"
            os.link(self.folder / LATEST, link)
            link.replace(self.folder / PREVIOUS)
        new.replace(self.folder / LATEST)
        if self.durable:
            self._sync(self.folder)

    @staticmethod
    def _sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _read(self, name: str) -> Stored | None:
        path = self.folder / name
        if not path.exists():
            return None
        try:
            metadata, tensors = read(path)
            tag, uuid, version = int(metadata["round"]), metadata["uuid"], metadata["format"]
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            self._set_aside(name, "damaged", f"is damaged ({redact(error)})")
            return None
        if version not in (str(FORMAT), str(WITHOUT_CARD)):
            self._set_aside(name, f"format-{version}", f"has format {version}, not {FORMAT}")
            return None
        if uuid != self.uuid:
            self._set_aside(name, f"of-{uuid[:8]}", "belongs to another run of the same name")
            return None
        return Stored(tag, tensors, name)

    def _set_aside(self, name: str, why: str, words: str) -> None:
        """Keep a file that cannot be used under another name: nothing is ever lost silently."""
        number, aside = 0, self.folder / f"{name}.{why}"
        while aside.exists():
            number += 1
            aside = self.folder / f"{name}.{why}.{number}"
        (self.folder / name).replace(aside)
        self.notes.append(f"{name} {words}; it was set aside as {aside.name}")
        print(f"{self.folder / name} {words}; it was set aside as {aside.name}", flush=True)


def _system_error(error: SafetensorError | OSError, path: Path) -> Exception:
    """safetensors tells the system's errors, such as a full disk, only in words: `… (os error 28)`."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path)) if number else error


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Tags and tensors of a state; SafetensorError or OSError where it cannot be read."""
    with safe_open(path, framework="pt") as stored:
        return stored.metadata() or {}, {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118
