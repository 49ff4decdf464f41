"""Credentials: what SCRAM (RFC 5802) keeps of a password, and how the store keeps it sealed.

Rules that hold here:
- A password is salted and iterated at once, and forgotten. What is left lets a cluster
  check it, and would let a thief log in: it is sealed before it is stored, by AES-GCM under
  a key that is not in the database.
- A seal holds for one user and one mechanism: moved to another row it does not open. What
  does not open is an error that names the user and the key file, never a guess.
- The server proves itself, too: a login counts only if its signature is right.
- Passwords are taken as their UTF-8 bytes, as Kafka takes them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass, field
from typing import Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.config.secrets import SecretFile, generate_key
from penstock.errors import UnavailableError, UsageError, quote
from penstock.store.kafka_users import SealedCredential

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# A server that asks for more would keep us busy rather than safe.
MOST_ITERATIONS = 1_000_000
SALT_BYTES = 24
PASSWORD_LIMIT = 1024
_NO_BINDING = "n,,"
_NONSENSE = "the broker answered a login with nonsense"
_WHICH = "check that kafka.bootstrap names your own cluster"
_NONCE = 12


@dataclass(frozen=True, slots=True)
class Credential:
    """A password, salted and iterated."""

    mechanism: str
    iterations: int
    salt: bytes
    salted: bytes = field(repr=False)


def derive(password: str, mechanism: str, iterations: int, salt: bytes | None = None) -> Credential:
    """Salt and iterate a password."""
    if not password or len(password.encode()) > PASSWORD_LIMIT:
        raise UsageError(
            "the password is empty, or too long", fix=f"take 1 to {PASSWORD_LIMIT} bytes"
        )
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return Credential(mechanism, iterations, salt, salted)


class Login:
    """One login of a client: three messages, each an answer to the server's last."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str | None = None) -> None:
        self._hash = HASHES[mechanism]
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message: who wants in."""
        return (_NO_BINDING + self._bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof, in answer to the server's salt."""
        try:
            fields = _read(server_first)
            nonce, salt = fields["r"], base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError):
            raise LoginRefusedError(_NONSENSE, fix=_WHICH) from None
        if not nonce.startswith(self._nonce) or not 0 < iterations <= MOST_ITERATIONS:
            raise LoginRefusedError(_NONSENSE, fix=_WHICH)
        salted = derive(self._password, self._mechanism, iterations, salt).salted
        binding = base64.b64encode(_NO_BINDING.encode()).decode()
        without_proof = f"c={binding},r={nonce}"
        message = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        client_key = self._mac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = self._mac(stored_key, message)
        proof = int.from_bytes(client_key) ^ int.from_bytes(signature)
        self._signature = self._mac(self._mac(salted, b"Server Key"), message)
        proven = base64.b64encode(proof.to_bytes(len(client_key))).decode()
        return f"{without_proof},p={proven}".encode()

    def check(self, server_final: bytes) -> None:
        """Check that the server knows the password, too."""
        try:
            signature = base64.b64decode(_read(server_final)["v"], validate=True)
        except (KeyError, ValueError):
            signature = b""
        if not hmac.compare_digest(signature, self._signature):
            raise LoginRefusedError("the broker could not prove that it knows the user", fix=_WHICH)

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


class LoginRefusedError(UnavailableError):
    """The broker does not let us in, or is not who it should be."""


def _read(message: bytes) -> dict[str, str]:
    parts = message.decode().split(",")
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}


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
