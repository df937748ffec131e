"""Whose key it is: a site signs the key that it tells for secure sums, with the key that it is registered by.

`fedbayes keys` gives every site a certificate of its name and registered key, from the federation's authority, whose
own key the coordinator does not have. So a coordinator that puts keys of its own in the place of the sites' is found
out by every site that was started with its folder of keys; a simulation has none, and takes keys as they come.
"""

import json
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, load_ssh_private_key
from cryptography.x509.oid import NameOID

from client_app.redact import SiteError

AUTHORITY, CERTIFICATE, KEY = "ca.crt", "site.crt", "site.key"  # as `fedbayes keys` calls them


class Identity:
    """The folder of keys with which a site was started."""

    def __init__(self, folder: Path) -> None:
        try:
            self.authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
            self.certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
            private = load_ssh_private_key((folder / KEY).read_bytes(), None)
        except (OSError, ValueError):
            raise SiteError(
                f"secure sums take a certificate of this site; `fedbayes keys` makes {CERTIFICATE}, which belongs into "
                "its folder of keys"
            ) from None
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        self.private = private

    def prove(self, run: str, name: str, public: str) -> str:
        """That this site has told this key for this run."""
        signature = self.private.sign(_signed(run, name, public), ec.ECDSA(SHA384()))
        certificate = self.certificate.public_bytes(Encoding.PEM).decode()
        return json.dumps({"certificate": certificate, "signature": signature.hex()})

    def require(self, proof: str, run: str, name: str, public: str) -> None:
        """SiteError unless the site of this name has."""
        try:
            said = json.loads(proof)
            certificate = x509.load_pem_x509_certificate(str(said["certificate"]).encode())
            certificate.verify_directly_issued_by(self.authority)
            owner = certificate.public_key()
            assert isinstance(owner, ec.EllipticCurvePublicKey)
            owner.verify(bytes.fromhex(said["signature"]), _signed(run, name, public), ec.ECDSA(SHA384()))
            (named,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            if str(named.value) != name or certificate.not_valid_after_utc < datetime.now(UTC):
                raise ValueError
        except (ValueError, TypeError, KeyError, AssertionError, InvalidSignature):
            raise SiteError(f"nobody has shown that the key of site {name} is its own") from None


def _signed(run: str, name: str, public: str) -> bytes:
    return json.dumps(["fedbayes secure sums", run, name, public]).encode()
