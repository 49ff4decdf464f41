"""SCRAM (RFC 5802): what is kept of a password, and how a client proves that it knows it.

Rules that hold here:
- A password is salted and iterated at once, and forgotten. What is left lets a cluster
  check it, and would let a thief log in: it is sealed before it is stored.
- The server proves itself, too: a login counts only if its signature is right.
- Passwords are taken as their UTF-8 bytes, as Kafka takes them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from penstock.errors import UnavailableError, UsageError

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# A server that asks for more would keep us busy rather than safe.
MOST_ITERATIONS = 1_000_000
SALT_BYTES = 24
PASSWORD_LIMIT = 1024
_NO_BINDING = "n,,"


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
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = self._mac(self._mac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

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


_NONSENSE = "the broker answered a login with nonsense"
_WHICH = "check that kafka.bootstrap names your own cluster"


def _read(message: bytes) -> dict[str, str]:
    parts = message.decode().split(",")
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}
