"""Seals credentials for the store: AES-GCM under a key that is not in the database.

Rules that hold here:
- A seal holds for one user and one mechanism: moved to another row it does not open.
- What does not open is an error that names the user and the key file, never a guess.
"""

from __future__ import annotations

import os
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.config.secrets import SecretFile, generate_key
from penstock.errors import UnavailableError, quote
from penstock.kafka.scram import Credential
from penstock.store.kafka_users import SealedCredential

_NONCE = 12


class CredentialVault:
    """Seals and opens credentials with one key."""

    def __init__(self, key: bytes, shown: str = "the key") -> None:
        derived = HKDF(SHA256(), 32, None, b"penstock kafka credentials").derive(key)
        self._cipher = AESGCM(derived)
        self._shown = shown

    @classmethod
    def open(cls, file: SecretFile) -> Self:
        """Read the key, which is made where there is none."""
        return cls(file.read_or_create(generate_key), str(file))

    def seal(self, user: str, credential: Credential) -> SealedCredential:
        """Seal a user's credential."""
        nonce = os.urandom(_NONCE)
        sealed = self._cipher.encrypt(
            nonce, credential.salted, _belongs(user, credential.mechanism)
        )
        return SealedCredential(
            credential.mechanism, credential.iterations, credential.salt, nonce + sealed
        )

    def unseal(self, user: str, found: SealedCredential) -> Credential:
        """Open what was sealed for this user."""
        nonce, sealed = found.sealed[:_NONCE], found.sealed[_NONCE:]
        try:
            salted = self._cipher.decrypt(nonce, sealed, _belongs(user, found.mechanism))
        except InvalidTag:
            raise UnavailableError(
                f"the credential of {quote(user)} does not open with {self._shown}",
                fix="bring the key back that sealed it, or `penstock user password` sets a new one",
            ) from None
        return Credential(found.mechanism, found.iterations, found.salt, salted)


def _belongs(user: str, mechanism: str) -> bytes:
    return f"{mechanism}\0{user}".encode()
