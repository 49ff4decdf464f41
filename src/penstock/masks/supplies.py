"""What masks need beside their parameters: hierarchies, keys, a vault for originals.

A generalization hierarchy is a tree whose leaves are values and whose nodes are more general:

    (Europe)                 level 2
      ├─ (Germany)           level 1
      │    ├─ Berlin
      │    └─ Potsdam
      └─ (France) …

Rules that hold here:
- A value stands in the tree once. Leaves are the values that records hold; a level counts
  steps up from the leaf, and the root is as far as it goes.
- Written as nested nodes: `{value, children}`.
- The secret is passed in; it stands in no parameter, no message and no representation.
- Every use has its own key, derived from the view, the mask and the field: what one
  view publishes can be linked to another view only where both name the same `domain`.
- Labels are framed by their lengths, so that no two lists of labels are the same bytes.
- A vault holds sealed values only (AES-SIV, bound to vault and token): who has the vault
  but not the key learns nothing, and who has the key but not the vault finds no token.
- The token of a value follows from the key, so that a replay puts the same entry again:
  `put` is idempotent, and an entry is kept before its token is published.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Final, Protocol, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from pydantic import Field as Parameter
from pydantic import model_validator

from penstock.errors import PenstockError, UsageError, quote
from penstock.model.definition import Part

MAX_NODES: Final = 100_000
MAX_DEPTH: Final = 32


class Node(Part):
    """A value or group of values, and what it stands for."""

    value: Annotated[str, Parameter(max_length=4096)] = Parameter(
        description="The value, or the name of the group."
    )
    children: tuple[Node, ...] = Parameter(
        default=(), strict=False, description="What the group stands for; none for a value."
    )


class Hierarchy(Node):
    """The root of a hierarchy."""

    @model_validator(mode="after")
    def _check_tree(self) -> Self:
        seen: set[str] = set()
        for path in self._walk():
            node = path[-1]
            if len(path) > MAX_DEPTH:
                raise ValueError(f"{quote(node.value)} lies deeper than {MAX_DEPTH} levels")
            if node.value in seen:
                raise ValueError(f"{quote(node.value)} stands in the hierarchy twice")
            seen.add(node.value)
            if len(seen) > MAX_NODES:
                raise ValueError(f"it has more than {MAX_NODES} nodes")
        if not self.children:
            raise ValueError("it has no values → give the root children")
        return self

    def _walk(self) -> Iterator[tuple[Node, ...]]:
        """Yield the way from the root to each node."""
        stack: list[tuple[Node, ...]] = [(self,)]
        while stack:
            path = stack.pop()
            yield path
            stack.extend((*path, child) for child in path[-1].children)

    @cached_property
    def paths(self) -> dict[str, tuple[str, ...]]:
        """The leaves, each with its ancestors from the nearest to the root."""
        return {
            path[-1].value: tuple(node.value for node in reversed(path[:-1]))
            for path in self._walk()
            if not path[-1].children
        }

    @property
    def height(self) -> int:
        """The steps from the deepest leaf to the root."""
        return max(map(len, self.paths.values()))

    def at_level(self, level: int) -> dict[str, str]:
        """Return the generalization of each leaf, so many steps up or at the root."""
        return {
            leaf: ancestors[min(level, len(ancestors)) - 1]
            for leaf, ancestors in self.paths.items()
        }


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


@dataclass(frozen=True, slots=True)
class Supplies:
    """The keys of one view, the hierarchies of all, the vault."""

    keys: Keys | None = None
    hierarchies: Mapping[str, Hierarchy] = field(default_factory=dict)
    vault: Vault | None = None

    def require_keys(self) -> Keys:
        """Return the keys of the view."""
        if self.keys is None:
            raise PenstockError("this mask needs the keys of its view")
        return self.keys

    def require_vault(self) -> Vault:
        """Return the vault."""
        if self.vault is None:
            raise PenstockError("this mask needs a vault")
        return self.vault
