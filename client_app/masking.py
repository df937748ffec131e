"""What a site needs to mask: its key and its file of one run, and the secrets that it shares with each other site."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from bayes_core import masks
from client_app.proof import Identity
from client_app.redact import SiteError
from fedbayes.protocol import files
from fedbayes.protocol import messages as key
from fedbayes.protocol.secure import NONCE, Cohort

KEY, STATE = "secure.key", "secure.json"


class Secrets:
    """What a site keeps of one run for its secure sums."""

    def __init__(self, folder: Path, name: str, durable: bool, identity: Identity | None = None) -> None:
        self.folder, self.name, self.durable, self.identity = folder, name, durable, identity

    def introduce(self, run: str) -> dict[str, str]:
        """A new key, as hello tells it."""
        private = X25519PrivateKey.generate()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write(KEY, private.private_bytes_raw().hex())
        public = public_of(private)
        return {
            key.KEY: public,
            key.PROOF: self.identity.prove(run, self.name, public) if self.identity else "",
        }

    def private(self) -> X25519PrivateKey:
        try:
            return X25519PrivateKey.from_private_bytes(bytes.fromhex((self.folder / KEY).read_text()))
        except (OSError, ValueError):
            raise SiteError("this site has lost its key for secure sums; start the run again") from None

    def state(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / STATE).read_text())
            return found
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            raise SiteError("what this site keeps of its secure sums cannot be read") from None

    def save(self, state: Mapping[str, Any]) -> None:
        self._write(STATE, json.dumps(state))

    def _write(self, name: str, text: str) -> None:
        """For this user alone, and on the disk before anything leaves that relies on it."""
        with (
            files.replacing(self.folder / name, shared=True) as new,
            os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream,
        ):
            stream.write(text)
            stream.flush()
            if self.durable:
                os.fsync(stream.fileno())
        if self.durable:
            files.sync(self.folder)


class Masking:
    """One site in one exchange: the secrets that it shares with each of the others.

    `secrets` are told of a site that is gone. So the keys under which shares travel are no part of them, nor made of
    them: they come from what two sites have in common by a label of their own, and a late upload stays masked by the
    mask whose shares they hide. Both are of one exchange: none opens anything of another.
    """

    def __init__(self, own: str, private: X25519PrivateKey, cohort: Cohort, context: str) -> None:
        """`context` says which exchange it is, and what all sites were told in it."""
        self.own, self.cohort = own, cohort
        self.secrets: dict[str, bytes] = {}  # by the other site: the seed of the mask in common
        self._keys: dict[tuple[str, str], bytes] = {}  # by who sends a share to whom; never told
        for name, public in zip(cohort.names, cohort.keys, strict=True):
            if name != own:
                first, second = sorted((own, name))
                try:
                    shared = private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
                except ValueError:
                    raise SiteError(f"the key of site {name} is none") from None
                self.secrets[name] = masks.derive(shared, "pair", context, first, second)
                for way in ((own, name), (name, own)):
                    self._keys[way] = masks.derive(shared, "share", context, *way)

    def cover(self, part: str, vector: masks.Vector, own_mask: bytes) -> None:
        """Add all masks of a part to it."""
        masks.cover(vector, own_mask, part)
        for name in self.cohort.members(part) - {self.own}:
            masks.cover(vector, self.secrets[name], part, masks.side(self.own, name))

    def seal(self, name: str, share: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + AESGCM(self._keys[self.own, name]).encrypt(nonce, share, None)

    def unseal(self, name: str, sealed: bytes) -> bytes | None:
        """A share of a site's mask; None where that site has not made it for this one in this exchange."""
        try:
            return AESGCM(self._keys[name, self.own]).decrypt(sealed[:NONCE], sealed[NONCE:], None)
        except InvalidTag:
            return None


def public_of(private: X25519PrivateKey) -> str:
    return private.public_key().public_bytes_raw().hex()
