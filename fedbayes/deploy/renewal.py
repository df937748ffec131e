"""Certificates in the course of time: until when they hold, who is warned, and how they are renewed.

Keys do not expire. The coordinator's certificate does, and the authority's, on which all sites rely.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedbayes.deploy.keys import (
    CA_CERTIFICATE,
    LOCAL,
    SERVER_CERTIFICATE,
    SERVER_DAYS,
    authority_certificate,
    names_in,
    server_certificate,
)
from fedbayes.errors import CommandError

WARNED = timedelta(days=30)
DAY = 24 * 3600.0  # seconds
WORDS = {CA_CERTIFICATE: "authority's", SERVER_CERTIFICATE: "coordinator's"}


@dataclass(frozen=True)
class Expiry:
    """Until when a certificate holds."""

    file: Path
    until: datetime

    @property
    def what(self) -> str:
        return f"The {WORDS.get(self.file.name, self.file.name)} certificate"

    def days(self, now: datetime | None = None) -> int:
        """That are left; below 0 where it holds no more."""
        return (self.until - (now or datetime.now(UTC))) // timedelta(days=1)

    def warning(self, now: datetime | None = None) -> str:
        """One sentence, 30 days ahead; empty before."""
        if self.until - (now or datetime.now(UTC)) > WARNED:
            return ""
        how = "`fedbayes keys DIR --renew` where the keys were made makes a new one"
        if (left := self.days(now)) < 0:
            return f"{self.what} ({self.file}) has not held since {self.until:%d %B %Y}; {how}."
        return f"{self.what} ({self.file}) holds until {self.until:%d %B %Y}, {left} more days; {how}."


def expiries(folder: Path) -> list[Expiry]:
    """Of the certificates in a coordinator's or site's folder, the first to expire first."""
    files = [folder / name for name in (SERVER_CERTIFICATE, CA_CERTIFICATE)]
    found = [Expiry(file, _read(file).not_valid_after_utc) for file in files if file.exists()]
    return sorted(found, key=lambda expiry: expiry.until)


def warn(folder: Path) -> None:
    """Say which certificates expire soon; CommandError where one has: nobody would talk to anybody."""
    for expiry in expiries(folder):
        if expiry.days() < 0:
            raise CommandError(expiry.warning())
        if words := expiry.warning():
            print(f"Warning: {words}", flush=True)


def warnings(folder: Path) -> list[str]:
    """The same of those that are in use already: sentences alone, also of what has expired."""
    with suppress(CommandError):  # being replaced just now
        return [words for expiry in expiries(folder) if (words := expiry.warning())]
    return []


def keep_warning(folder: Path, every: float = DAY) -> None:
    """Say it once a day of the certificates with which this process started, from a thread that ends with it."""
    try:
        found = expiries(folder)
    except CommandError:  # whoever reads them next says why
        return

    def look() -> None:
        while True:
            time.sleep(every)
            for words in filter(None, (expiry.warning() for expiry in found)):
                print(f"Warning: {words}", flush=True)

    threading.Thread(target=look, daemon=True, name="certificates").start()


@dataclass(frozen=True)
class Renewed:
    """What `renew` has replaced."""

    authority: bool  # whether the authority's certificate is new too, and goes to every machine
    names: list[str]
    until: datetime


def renew(folder: Path, hosts: Sequence[str]) -> Renewed:
    """A new certificate for the coordinator, with the key and, unless others are given, the names of the old one.

    The authority's own is renewed with it where the new one would outlive it: with the same key and name, so that sites
    which still have the old one go on until it expires.
    """
    ca, coordinator = folder / "ca", folder / "coordinator"
    server, authority = coordinator / SERVER_CERTIFICATE, ca / CA_CERTIFICATE
    for file in (authority, ca / "ca.key", server, coordinator / "server.key"):
        if not file.is_file():
            raise CommandError(f"{file} is missing: a certificate is renewed where `fedbayes keys` made it.")
    signer = _key(ca / "ca.key")
    replaced = _read(authority).not_valid_after_utc < datetime.now(UTC) + timedelta(days=SERVER_DAYS)
    old = names_in(_read(server))
    names = list(dict.fromkeys([*(hosts or [name for name in old if name not in LOCAL]), *LOCAL]))
    try:
        if replaced:
            new = authority_certificate(signer)
            sites = [path.parent for path in folder.glob("*/site.key")]
            for place in (ca, coordinator, *sites):
                _replace(place / CA_CERTIFICATE, new)
        key = _key(coordinator / "server.key")
        _replace(server, server_certificate(_read(authority), signer, key, names))
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written: {error.strerror}.") from None
    return Renewed(replaced, names, _read(server).not_valid_after_utc)


def _read(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(f"{file} is no certificate: {error}.") from None


def _key(file: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise CommandError(f"{file} is no private key: {error}.") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _replace(file: Path, data: bytes) -> None:
    """At once, so that nobody reads half a certificate."""
    beside = file.with_name(f".{file.name}.new")
    beside.write_bytes(data)
    beside.chmod(0o644)
    beside.replace(file)
