"""Keys at rest: wrapped under a key that is not in the database, and destroyed for good.

Rules that hold here:
- What wraps follows from a secret of the installation and a purpose, so that a key of one
  purpose never unwraps as one of another. Context that belongs to a key is authenticated with it.
- What is deleted while `destroying` is overwritten in the file, where SQLite would leave it.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection

from penstock.store.database import Database

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


class KeyWrapping:
    """Wraps keys of one purpose. Threads may share it."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self._cipher = AESGCM(hmac.digest(secret, f"penstock {purpose}".encode(), "sha256"))

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Return a key as it may be stored."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return a key that was stored; `InvalidTag` where it is not the one of this context."""
        return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)


@contextmanager
def destroying(database: Database, area: str) -> Iterator[Connection]:
    """Write in a transaction whose deletions leave nothing behind."""
    with database.write(area) as connection:
        if not database.is_postgresql:
            connection.exec_driver_sql("PRAGMA secure_delete=ON")
        yield connection
        if not database.is_postgresql:
            connection.exec_driver_sql("PRAGMA secure_delete=OFF")
