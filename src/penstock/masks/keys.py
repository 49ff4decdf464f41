"""Keys: one secret, and a key of its own for every use.

Rules that hold here:
- The secret is passed in; it stands in no parameter, no message and no representation.
- Every use has its own key, derived from the view, the mask and the field: what one
  view publishes can be linked to another view only where both name the same `domain`.
- Labels are framed by their lengths, so that no two lists of labels are the same bytes.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import UsageError

MIN_SECRET: Final = 32
BLOCK: Final = 64
"""Bytes of a block of SHA-256; a key of HMAC is padded to one."""

_INNER: Final = bytes(0x36 ^ value for value in range(256))
_OUTER: Final = bytes(0x5C ^ value for value in range(256))


@dataclass(frozen=True, slots=True)
class Keys:
    """The secret of an installation, seen from one view."""

    secret: bytes = field(repr=False)
    view: str

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_SECRET:
            raise UsageError(
                f"the secret for masks has {len(self.secret)} bytes",
                fix=f"give at least {MIN_SECRET} random bytes",
            )

    def derive(self, mask: str, name: str, *labels: str) -> bytes:
        """Return the key of 32 bytes for one mask on one field of this view."""
        return _expand(self.secret, ("view", self.view, mask, name, *labels))

    def derive_shared(self, mask: str, domain: str, *labels: str) -> bytes:
        """Return the key for a domain, which is the same for all views and fields that name it."""
        return _expand(self.secret, ("domain", domain, mask, *labels))


def _expand(secret: bytes, labels: tuple[str, ...]) -> bytes:
    framed = b"penstock masks 1"
    for label in labels:
        encoded = label.encode()
        framed += len(encoded).to_bytes(4) + encoded
    return hmac.digest(secret, framed, "sha256")


def split_key(key: bytes) -> tuple[bytes, bytes]:
    """Return the inner and outer block of HMAC-SHA-256 for a key.

    HMAC is sha256(outer + sha256(inner + message)), which Spark can compute by itself.
    """
    padded = key.ljust(BLOCK, b"\0")
    return padded.translate(_INNER), padded.translate(_OUTER)


def draw(key: bytes, message: str, bits: int) -> int:
    """Return so many bits (at most 64) of the keyed hash of a message, as a number."""
    digest = hmac.digest(key, message.encode(), "sha256")
    return int.from_bytes(digest[:8]) >> (64 - bits)
