"""The vault: where the originals behind tokens are kept, for those with the right to see them.

Rules that hold here:
- A vault holds sealed values only (AES-SIV, bound to vault and token): who has the vault
  but not the key learns nothing, and who has the key but not the vault finds no token.
- The token of a value follows from the key, so that a replay puts the same entry again:
  `put` is idempotent, and an entry is kept before its token is published.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

KEY_VAULT: Final = "penstock:keys"
"""Where the fingerprints of keys are kept that have made tokens."""
FINGERPRINT: Final = 32


def fingerprint(secret: bytes) -> str:
    """Return what a secret is known by, from which nothing else about it follows."""
    return hmac.digest(secret, b"penstock masks fingerprint", "sha256").hex()[:FINGERPRINT]


class Vault(Protocol):
    """A table of sealed values by vault name and token."""

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        """Keep sealed values by their tokens; returns when they are safe."""

    def get(self, vault: str, token: str) -> bytes | None:
        """Return the sealed value of a token, or None where it is not kept."""


class Seal:
    """Seals and opens the values of one vault; the same value is sealed the same way."""

    def __init__(self, vault: str, encryption: bytes, authentication: bytes) -> None:
        self._cipher = AESSIV(encryption + authentication)
        self._vault = vault.encode()

    def close(self, token: str, value: str) -> bytes:
        """Return the sealed form of a value."""
        return self._cipher.encrypt(value.encode(), [self._vault, token.encode()])

    def open(self, token: str, sealed: bytes) -> str | None:
        """Return the value, or None where it was not sealed by this key for this token."""
        try:
            return self._cipher.decrypt(sealed, [self._vault, token.encode()]).decode()
        except InvalidTag:
            return None
