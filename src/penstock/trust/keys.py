"""Keys of domains: how one is written, what signs with it, what checks a signature.

Rules that hold here:
- A domain is its public key (Ed25519), 64 hexadecimal digits. Names for people come on top.
- A signature is over a purpose, its length, and the canonical JSON of a statement: sorted names,
  no spaces, ASCII, whole numbers only.
- A wrong signature, and a key that is none, are both refused; nobody learns which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, Protocol, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from penstock.errors import DeniedError, UsageError, quote

KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
SIGNATURE: Final = re.compile(r"[0-9a-f]{128}", re.ASCII)


class TrustError(DeniedError):
    """Something that somebody signed, or should have signed, is not believed."""


def canonical(statement: Mapping[str, Any]) -> bytes:
    """Return the one encoding of a statement."""
    return json.dumps(
        statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def digest(purpose: bytes, statement: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a statement with its purpose, as 64 hexadecimal digits."""
    return sha256(_framed(purpose, statement)).hexdigest()


def _framed(purpose: bytes, statement: Mapping[str, Any]) -> bytes:
    # The length keeps a purpose from running into the statement.
    return b"penstock trust %d " % len(purpose) + purpose + canonical(statement)


def check_key(text: str) -> str:
    """Refuse what is not a public key."""
    if not KEY.fullmatch(text):
        raise UsageError(
            f"{quote(text)} is not a public key",
            fix="write its 64 hexadecimal digits, as `penstock cert key` prints them",
        )
    return text


def fingerprint(key: str) -> str:
    """Return the short form of a key, for people to compare: four groups of four digits."""
    short = sha256(bytes.fromhex(key)).hexdigest()[:16]
    return "-".join(short[at : at + 4] for at in range(0, 16, 4))


def verify(key: str, purpose: bytes, statement: Mapping[str, Any], signature: str) -> bool:
    """Tell whether a key signed a statement for a purpose."""
    if not KEY.fullmatch(key) or not SIGNATURE.fullmatch(signature):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(
            bytes.fromhex(signature), _framed(purpose, statement)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


class DomainKey:
    """The private key of a domain, which it never shows, and the name that follows from it."""

    __slots__ = ("_private", "key")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.key = private.public_key().public_bytes_raw().hex()
        """The public key: what others know the domain by."""

    def __repr__(self) -> str:
        return f"DomainKey({fingerprint(self.key)})"

    def sign(self, purpose: bytes, statement: Mapping[str, Any]) -> str:
        """Sign a statement for a purpose."""
        return self._private.sign(_framed(purpose, statement)).hex()

    def seed(self) -> bytes:
        """Return the key itself, for the library that signs capabilities."""
        return self._private.private_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        """Make a new key that is kept nowhere."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def parse(cls, pem: bytes, source: object) -> Self:
        """Read a private key; `source` is named where that fails."""
        try:
            private = forms.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            private = None
        if not isinstance(private, Ed25519PrivateKey):
            raise UsageError(
                f"{quote(source)} holds no Ed25519 private key in PEM form without a password",
                fix="openssl genpkey -algorithm ed25519 makes one; a missing file is created",
            )
        return cls(private)


class KeyStore(Protocol):
    """Where a private key is kept: `penstock.config.secrets.KeyFile`, for one."""

    def read_or_create(self, generate: Callable[[], bytes]) -> bytes:
        """Return what is kept, made by `generate` where nothing is."""
        ...


def open_key(place: KeyStore) -> DomainKey:
    """Return the key of a domain; make it where there is none yet."""
    return DomainKey.parse(place.read_or_create(generate_pem), place)


def generate_pem() -> bytes:
    """Make a new private key, as the file of a domain's key holds it."""
    return Ed25519PrivateKey.generate().private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
