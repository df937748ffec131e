"""The app as it is sent to sites: its hash, its signature, and whether a site may carry it out.

An app's hash is the SHA-256 of the list that `sha256sum` prints of its files in their order, so the same code has the
same hash wherever it is packed. The signature, Ed25519 over that hash, lies in the bundle itself: Flower carries it and
need not know. (Flower's own verification comes from its hub, for apps that are published there.)

Nothing here imports anything of fedbayes later than at its start: a site's executor uses it when it has forgotten the
site's own modules.
"""

import base64
import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedbayes.errors import CommandError

APP_KEY, APP_PUBLIC = "app.key", "app.pub"
SIGNATURE, UNSIGNED = "signature.json", b"{}\n"
LISTING = ".info/CONTENT"  # Flower's own, which it does not install
PURPOSE = b"fedbayes app "  # a signature of this key means nothing else
SUFFIXES = {".py", ".toml", ".md", ".yaml", ".yml", ".json"}
LARGEST = 64 * 2**20  # bytes of an app, unpacked; Flower's limit is 10 MB for a packed one
SHOWN = 16  # digits of a hash in a sentence


class RefusedAppError(Exception):
    """An app that this site does not carry out; its text is one sentence, and goes to the coordinator."""


def unpacked(bundle: bytes) -> dict[str, bytes]:
    """The files of a bundle; RefusedAppError where Flower might install something else than is seen here."""
    files: dict[str, bytes] = {}
    seen: set[str] = set()  # without capitals: some disks do not tell them apart
    try:
        with zipfile.ZipFile(BytesIO(bundle)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
                raise RefusedAppError("the app is larger than any that fedbayes sends")
            for entry in archive.infolist():
                name = entry.filename
                path = PurePosixPath(name)
                plain = str(path) == name and not path.is_absolute() and "\\" not in name
                if not plain or ".." in path.parts or name.casefold() in seen:
                    raise RefusedAppError("the app has a file of a strange name, or two of one name")
                if name != LISTING and path.suffix not in SUFFIXES:
                    raise RefusedAppError("the app has files that are neither Python nor text")
                seen.add(name.casefold())
                files[name] = archive.read(entry)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError):
        raise RefusedAppError("the app cannot be read") from None
    files.pop(LISTING, None)
    return files


def app_hash(files: Mapping[str, bytes]) -> str:
    """The hash of an app's files, whatever its signature."""
    lines = [
        f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files) if name != SIGNATURE
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def sign(files: Mapping[str, bytes], key: Path) -> bytes:
    """What belongs into SIGNATURE."""
    try:
        secret = load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise CommandError(f"{key}, which signs apps, cannot be read: {error}.") from None
    if not isinstance(secret, Ed25519PrivateKey):
        raise CommandError(f"{key} is no key of `fedbayes keys` that signs apps.")
    name = app_hash(files)
    signature = base64.b64encode(secret.sign(PURPOSE + name.encode())).decode()
    return json.dumps({"app": name, "signature": signature}).encode()


@dataclass(frozen=True)
class Trust:
    """The apps that a site carries out: those that one key has signed, and of these only some, if it says so."""

    key: str = ""  # an OpenSSH line; none: signatures are not asked for
    only: tuple[str, ...] = ()  # hashes; none: any app of the key

    @classmethod
    def of(cls, folder: Path, only: Iterable[str]) -> "Trust":
        """Of a site's folder: where there is a public key for apps, they must be signed."""
        file = folder / APP_PUBLIC
        key = ""
        if file.exists():
            try:
                key = file.read_text("ascii").strip()
                if not isinstance(load_ssh_public_key(key.encode()), Ed25519PublicKey):
                    raise ValueError("it is of another kind")
            except (OSError, ValueError) as error:
                raise CommandError(f"{file} is no public key of `fedbayes keys` for apps: {error}.") from None
        return cls(key, tuple(only))

    @classmethod
    def read(cls, text: str) -> "Trust":
        found = json.loads(text)
        return cls(found["key"], tuple(found["only"]))

    def write(self) -> str:
        return json.dumps({"key": self.key, "only": self.only})

    def __bool__(self) -> bool:
        return bool(self.key or self.only)

    def check(self, bundle: bytes) -> dict[str, bytes]:
        """The files of a bundle that may be carried out; RefusedAppError says why another may not."""
        files = unpacked(bundle)
        name = app_hash(files)
        if self.key:
            self._check_signature(files.get(SIGNATURE, UNSIGNED), name)
        if self.only and name not in self.only:
            raise RefusedAppError(
                f"this site carries out only the app {' or '.join(one[:SHOWN] for one in self.only[:3])}…, and was "
                f"sent {name[:SHOWN]}…"
            )
        return files

    def _check_signature(self, signature: bytes, name: str) -> None:
        if signature == UNSIGNED:
            raise RefusedAppError(
                f"this site carries out only signed apps, and {name[:SHOWN]}… is not; `fedbayes run --on` signs "
                f"where {APP_KEY} of `fedbayes keys` is"
            )
        key = load_ssh_public_key(self.key.encode())
        assert isinstance(key, Ed25519PublicKey)
        try:
            said = json.loads(signature)
            value = base64.b64decode(said["signature"], validate=True)
            if said["app"] != name:
                raise RefusedAppError(f"the app {name[:SHOWN]}… was altered after it was signed")
            key.verify(value, PURPOSE + name.encode())
        except InvalidSignature:
            raise RefusedAppError(
                f"the app {name[:SHOWN]}… is signed with another key than this federation's"
            ) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise RefusedAppError(f"the signature of the app {name[:SHOWN]}… cannot be read") from None


def is_as_sent(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether an installed app has these files and no others, but for what Python makes of them."""
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir() and "__pycache__" not in path.relative_to(folder).parts
    }
    return found == set(files) and all(
        not (folder / name).is_symlink() and (folder / name).read_bytes() == content
        for name, content in files.items()
    )
