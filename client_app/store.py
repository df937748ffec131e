"""The personal state on this client's disk: STATE/RUN/SITE/.

`personal.safetensors` is the state after the latest round trained here, `previous.safetensors` the one before
it; each is tagged with format version, run UUID, round, the round of the state that it was trained from and a checksum
of its tensors, and carries a card that says what it is (card.py). The state to start round t from is the latest with a
tag below t, so a round that the server repeats after a crash begins where it began the first time. A state that is
damaged, not finite or absurd is set aside, and the one before it takes its place.

A method whose personal model is made anew from what it receives has it in `model.safetensors` beside its state, with
the same tags and card; `read_model` finds the file that holds the personal model.

Files are replaced by rename: a crash at any moment leaves the previous or the new state, never a mixture.
Whoever works with a state holds a lock on its folder, which the kernel frees when that process ends. A process that
stays keeps the states that it trained on a GPU there too, and as many of a simulation in memory as fit, and takes them
from there while the file is the one it wrote.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from bayes_core.families import is_finite
from bayes_core.flat import without_buffers
from client_app.checksum import checksum, fits
from client_app.redact import SiteError, redact
from client_app.tensor_file import save_file
from fedbayes.protocol import files

FORMAT = 2
WITHOUT_CARD = 1  # an older format with the same tensors: a run can go on from it
LATEST, PREVIOUS, MODEL = "personal.safetensors", "previous.safetensors", "model.safetensors"
MOST_ON_DEVICE = 2**30  # bytes of states that a process leaves on its GPU between rounds
MOST_IN_MEMORY = 2**26  # and of a simulation's states in memory
LARGE, TIMES = (
    1e3,
    100.0,
)  # a number beyond the first and so many times as large as before the round is absurd
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
        busy = SiteError(
            f"another process has been using the personal model of site {self.folder.name} for {LOCK_WAIT:g} s; is "
            "the site started twice?"
        )
        with files.locked(self.folder, LOCK_WAIT, busy):
            yield

    def load(self, before: int) -> Stored | None:
        """The latest state with a tag below `before`; None for a client without a past."""
        for name in (LATEST, PREVIOUS):  # the second file is read only where the first does not serve
            state = self._read(name)
            if state and state.round < before and not (name == LATEST and self._absurd(state)):
                return state
        return None

    def _absurd(self, state: Stored) -> bool:
        """Whether a state went where no round leads from the one before it; it is then set aside."""
        largest = _largest(state.tensors)
        if largest <= LARGE or not (before := self._read(PREVIOUS)):
            return False
        absurd = largest > TIMES * _largest(before.tensors)
        if absurd:
            self._set_aside(LATEST, "absurd", f"has numbers up to {largest:.2g}, which no round leads to")
        return absurd

    def save(self, server_round: int, tensors: Mapping[str, Tensor], started_from: Stored | None) -> None:
        """The state after `server_round`; the one it started from is kept beside it."""
        elsewhere = any(tensor.device.type != "cpu" for tensor in tensors.values())
        left = (
            dict(tensors) if elsewhere else {} if self.durable else {k: _own(v) for k, v in tensors.items()}
        )
        origin = "" if started_from is None else str(started_from.round)
        forwards = started_from is not None and started_from.file == LATEST
        with self._replacing(LATEST, server_round, tensors, origin, over=forwards and not self.durable):
            if forwards:
                with files.replacing(self.folder / PREVIOUS, shared=True) as link:
                    os.link(self.folder / LATEST, link)
        if left:
            most = MOST_ON_DEVICE if elsewhere else MOST_IN_MEMORY
            _keep(self.folder / LATEST, self.uuid, Stored(server_round, left, LATEST), most)

    def save_model(self, server_round: int, tensors: Mapping[str, Tensor]) -> None:
        """The personal model after `server_round`, of a method that makes it from what it receives.

        Its state is then not what predicts; nothing is started from this file.
        """
        with self._replacing(MODEL, server_round, tensors):
            pass

    @contextmanager
    def _replacing(
        self,
        name: str,
        server_round: int,
        tensors: Mapping[str, Tensor],
        origin: str = "",
        over: bool = False,
    ) -> Iterator[None]:
        """The tensors with tags and card on the disk; after the block they take the place of the file.

        `over`: written over the state before the latest, which nobody needs any more. Its memory is there already,
        which saves a third of the time.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        tags = {"format": str(FORMAT), "uuid": self.uuid, "round": str(server_round), "card": self.card}
        tags["from"] = origin  # nothing at the start of a run: a chain without a gap has lost no round
        here = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        tags["checksum"] = checksum(here)
        # Shared: a late round may still be writing in another process.
        with files.replacing(self.folder / name, shared=True) as new:
            # a crash between a link and its rename leaves both names for one file
            if over and (before := self.folder / PREVIOUS).exists() and before.stat().st_nlink == 1:
                before.replace(new)
            try:
                save_file(here, new, tags)
                if self.durable:
                    files.sync(new)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(new)) from None
            yield
        if self.durable:
            files.sync(self.folder)

    def _read(self, name: str) -> Stored | None:
        path = self.folder / name
        if not path.exists():
            return None
        if name == LATEST and (known := _kept.get(path)) and known.still(path, self.uuid):
            return replace(known.stored, tensors=dict(known.stored.tensors))
        try:
            metadata, tensors = read(path)
            tag, uuid, version = int(metadata["round"]), metadata["uuid"], metadata["format"]
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            self._set_aside(name, "damaged", f"is damaged ({redact(error)})")
            return None
        if (tag_of_tensors := metadata.get("checksum")) is not None and not fits(tensors, tag_of_tensors):
            self._set_aside(name, "damaged", "is damaged (its checksum is another)")
            return None
        if not all(map(is_finite, without_buffers(tensors).values())):
            self._set_aside(name, "not-finite", "has values that are not finite")
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


@dataclass(frozen=True)
class Kept:
    """A state that is still in memory or on a GPU, and what its file looked like when it was saved."""

    uuid: str
    stored: Stored
    file: tuple[int, ...]

    def still(self, path: Path, uuid: str) -> bool:
        return uuid == self.uuid and _identity(path) == self.file

    @property
    def size(self) -> int:
        return sum(tensor.nbytes for tensor in self.stored.tensors.values())


_kept: dict[Path, Kept] = {}  # of a process that serves several messages, the latest last


def _keep(path: Path, uuid: str, stored: Stored, most: int) -> None:
    """Spare the next round the way from the disk, as long as states are few or small."""
    _kept.pop(path, None)
    _kept[path] = Kept(uuid, stored, _identity(path))
    while sum(kept.size for kept in _kept.values()) > most:
        del _kept[next(iter(_kept))]


def _own(tensor: Tensor) -> Tensor:
    """In one piece, as a file gives it, in memory of its own: a method may give back a part of a message."""
    tensor, memory = tensor.detach().contiguous(), tensor.untyped_storage()
    return tensor if memory.resizable() and memory.nbytes() == tensor.nbytes else tensor.clone()


def _identity(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Tags and tensors of a state; SafetensorError or OSError where it cannot be read."""
    with safe_open(path, framework="pt") as stored:
        return stored.metadata() or {}, {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118


def _largest(tensors: Mapping[str, Tensor]) -> float:
    """The largest number of a state's weights; moments of optimisers and buffers have their own sizes."""
    weights = [
        tensor
        for name, tensor in without_buffers(tensors).items()
        if tensor.is_floating_point() and tensor.numel() and not name.endswith("moments")
    ]
    return max((float(tensor.abs().max()) for tensor in weights), default=0.0)


def holds(state: Mapping[str, Tensor], made: Mapping[str, Tensor]) -> bool:
    """Whether all these tensors are the state's own, and not computed from something."""

    def places(tensors: Mapping[str, Tensor]) -> set[tuple[int, int]]:
        return {(tensor.data_ptr(), tensor.nbytes) for tensor in tensors.values()}

    return places(made) <= places(state)


def read_model(folder: Path) -> Path:
    """The file with the personal model in a client's folder: the newer of model and state, the model at a tie.

    A model of an earlier round than the state is left from before a resume; what cannot be read is older than all.
    """
    model, state = folder / MODEL, folder / LATEST
    return model if model.exists() and _round(model) >= _round(state) else state


def _round(path: Path) -> int:
    """After which round a file was saved, from its tags alone; -1 where it does not say."""
    try:
        with safe_open(path, framework="pt") as stored:
            return int((stored.metadata() or {})["round"])
    except (SafetensorError, OSError, KeyError, ValueError):
        return -1
