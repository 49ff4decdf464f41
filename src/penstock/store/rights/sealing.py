"""Seals what is kept about people in privacy requests: identifiers and addresses.

Rules that hold here:
- AES-256-GCM under a key derived from the key of consent, with a random nonce for each value. The
  column and the row are part of what is authenticated: a value that is moved opens nothing.
- What cannot be opened is reported as such, and never quoted.
"""

from __future__ import annotations

import hmac
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.errors import UnavailableError

_NONCE: Final = 12


class Sealer:
    """Seals and opens texts under one key."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(hmac.digest(secret, b"penstock rights sealing", "sha256"))

    def seal(self, text: str, place: str) -> bytes:
        """Return a text sealed for its place."""
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, text.encode(), place.encode())

    def open(self, sealed: bytes, place: str) -> str:
        """Return the text that was sealed for this place."""
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], place.encode())
        except (InvalidTag, ValueError):
            raise UnavailableError(
                "a sealed value of a privacy request cannot be opened",
                fix="bring the file back that consent.key names; if it is the right one, the "
                "database was tampered with",
            ) from None
        return plain.decode()
