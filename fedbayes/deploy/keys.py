"""`fedbayes keys`: the certificates and keys of a federation, one folder for each machine.

    DIR/ca            stays where it is made: whoever has ca.key can make certificates
    DIR/coordinator   goes to the coordinator: its certificate and key, the key that signs apps, the sites' public keys
    DIR/site-0 …      goes to that site: its private key and the CA's certificate of it, the CA's own, the public key of
                      signed apps

Nothing is ever overwritten: called again, it adds what is missing. Only `renew` replaces certificates (renewal.py).
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedbayes.deploy.bundles import APP_KEY, APP_PUBLIC
from fedbayes.errors import CommandError

CURVE = ec.SECP384R1  # of all keys; Flower signs a node's messages with it
CA_DAYS, SERVER_DAYS = 3650, 825
LOCAL = ("localhost", "127.0.0.1", "::1")  # the coordinator's own commands use these
CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY, SITE_KEY = "ca.crt", "server.crt", "server.key", "site.key"
SITE_CERTIFICATE = "site.crt"  # by which other sites know it, in secure sums


@dataclass(frozen=True)
class Made:
    """What a call has made, by name, and until when the coordinator's certificate holds."""

    new: list[str]
    names: list[str]
    expires: datetime


def make_keys(folder: Path, hosts: Sequence[str], sites: int) -> Made:
    """Everything a federation of `sites` sites needs, as far as it is not there yet."""
    coordinator = folder / "coordinator"
    _alternative_names(hosts)  # before anything is made
    if not hosts and not (coordinator / SERVER_CERTIFICATE).exists():
        raise CommandError("--host takes a name or address of the coordinator, as the sites will call it.")
    try:
        for each in (folder, folder / "ca", coordinator, coordinator / "sites"):
            each.mkdir(mode=0o700, exist_ok=True)
        new = _make_ca(folder / "ca")
        authority = (folder / "ca" / CA_CERTIFICATE).read_bytes()
        new += _write(coordinator / CA_CERTIFICATE, authority, 0o644)
        new += _make_server(folder / "ca", coordinator, hosts)
        new += _make_app_key(coordinator)
        for number in range(sites):
            new += _make_site(folder / f"site-{number}", coordinator / "sites", authority)
        for site in (path.parent for path in folder.glob(f"*/{SITE_KEY}")):
            new += _write(site / APP_PUBLIC, (coordinator / APP_PUBLIC).read_bytes(), 0o644)
            new += _certify(folder / "ca", site, coordinator / "sites")
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read or written: {error.strerror}.") from None
    certificate = x509.load_pem_x509_certificate((coordinator / SERVER_CERTIFICATE).read_bytes())
    fresh = {path.parent for path in new if path.name == SITE_KEY}
    made = sorted({path.parent.name if path.parent in fresh else path.name for path in new})
    return Made(made, names_in(certificate), certificate.not_valid_after_utc)


def _make_ca(folder: Path) -> list[Path]:
    """A self-signed authority; its key is needed again only for a new server certificate."""
    if (folder / CA_CERTIFICATE).exists():
        return []
    key, new = _private_key(folder / "ca.key", PrivateFormat.PKCS8)
    return new + _write(folder / CA_CERTIFICATE, authority_certificate(key), 0o644)


def authority_certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedbayes federation")])
    builder = (
        _certificate(subject, subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, SHA384()).public_bytes(Encoding.PEM)


def _make_server(ca: Path, folder: Path, hosts: Sequence[str]) -> list[Path]:
    """The coordinator's certificate, valid for all the names it is reached by."""
    file = folder / SERVER_CERTIFICATE
    if file.exists():
        names = names_in(x509.load_pem_x509_certificate(file.read_bytes()))
        if missing := [host for host in hosts if host not in names]:
            raise CommandError(
                f"{file} is for {', '.join(names)}, not for {', '.join(missing)}; with --renew a new one is made for "
                "the names you give."
            )
        return []
    if not (ca / "ca.key").exists():
        raise CommandError(f"{ca / 'ca.key'} is missing: only it can sign a certificate for the coordinator.")
    authority = x509.load_pem_x509_certificate((ca / CA_CERTIFICATE).read_bytes())
    signer, _ = _private_key(ca / "ca.key", PrivateFormat.PKCS8)
    key, new = _private_key(folder / SERVER_KEY, PrivateFormat.PKCS8)
    return new + _write(file, server_certificate(authority, signer, key, [*hosts, *LOCAL]), 0o644)


def server_certificate(
    authority: x509.Certificate,
    signer: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
    names: Sequence[str],
) -> bytes:
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    builder = (
        _certificate(subject, authority.subject, key, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_alternative_names(names), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
    )
    return builder.sign(signer, SHA384()).public_bytes(Encoding.PEM)


def _make_app_key(folder: Path) -> list[Path]:
    """The key that signs what sites are sent; a public key alone says that it is kept elsewhere."""
    if (folder / APP_PUBLIC).exists():
        return []
    key = Ed25519PrivateKey.generate()
    new = _write(
        folder / APP_KEY, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600
    )
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return new + _write(folder / APP_PUBLIC, line + b" fedbayes apps\n", 0o644)


def _make_site(folder: Path, known: Path, authority: bytes) -> list[Path]:
    """A key pair for a site whose public key the coordinator does not have yet."""
    public = known / f"{folder.name}.pub"
    if public.exists():
        return []
    if (folder / SITE_KEY).exists():
        raise CommandError(
            f"{folder / SITE_KEY} exists but {public} does not: the site was revoked, or is half made; delete "
            f"{folder} to give it a new key."
        )
    folder.mkdir(mode=0o700, exist_ok=True)
    key, new = _private_key(folder / SITE_KEY, PrivateFormat.OpenSSH)
    _write(folder / CA_CERTIFICATE, authority, 0o644)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(public, line + f" {folder.name}\n".encode(), 0o644)
    return new


def _certify(ca: Path, site: Path, known: Path) -> list[Path]:
    """A certificate of the name and key of a site that may take part, where the authority's key is here to sign it."""
    there = (site / SITE_CERTIFICATE).exists()
    if there or not (ca / "ca.key").exists() or not (known / f"{site.name}.pub").exists():
        return []
    signer, _ = _private_key(ca / "ca.key", PrivateFormat.PKCS8)
    authority = x509.load_pem_x509_certificate((ca / CA_CERTIFICATE).read_bytes())
    key = load_ssh_private_key((site / SITE_KEY).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site.name)])
    builder = (
        _certificate(subject, authority.subject, key, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
    )
    signed = builder.sign(signer, SHA384()).public_bytes(Encoding.PEM)
    return _write(site / SITE_CERTIFICATE, signed, 0o644)


def _private_key(file: Path, form: PrivateFormat) -> tuple[ec.EllipticCurvePrivateKey, list[Path]]:
    """The key in `file`, made first where there is none; and the file, if it is new."""
    if file.exists():
        key = load_pem_private_key(file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key, []
    key = ec.generate_private_key(CURVE())
    return key, _write(file, key.private_bytes(Encoding.PEM, form, NoEncryption()), 0o600)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=10))  # clocks differ a little
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    names: dict[x509.GeneralName, None] = {}  # in order, each once
    for host in hosts:
        try:
            names[x509.IPAddress(ip_address(host))] = None
        except ValueError:
            try:
                names[x509.DNSName(host)] = None
            except ValueError:
                raise CommandError(f'--host takes a name or an address, not "{host}".') from None
    return x509.SubjectAlternativeName(names)


def names_in(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _write(file: Path, data: bytes, mode: int) -> list[Path]:
    """A new file with this mode from its first byte on; one that exists stays as it is."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return []
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
    return [file]
