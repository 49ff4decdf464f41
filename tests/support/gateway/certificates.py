"""A certificate authority for one test."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates and writes them into a folder."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.path = folder / "ca.pem"
        self.path.write_bytes(
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(self, common_name: str) -> tuple[Path, Path]:
        """Write a certificate and its key; return both paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        alternatives = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        made = self._builder(name, key.public_key()).add_extension(
            x509.SubjectAlternativeName(alternatives), critical=False
        )
        certificate = self.folder / f"{common_name}.pem"
        certificate.write_bytes(
            made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        secret = self.folder / f"{common_name}.key"
        secret.touch(mode=0o600)
        secret.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, secret

    def _builder(
        self, name: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=1))
            .not_valid_after(now + dt.timedelta(hours=1))
        )
