"""Sealed messages: what crosses a broker that nobody trusts, whole or attribute by attribute.

    magic   kind  event type  published  sealer  number  count   mark  generation  length   sealed
    4 bytes 1     16          8          16      8       1       8     4           4        …
                                                                 └── count times ──┘

Rules that hold here:
- AES-256-GCM under a key that HKDF derives from the group's key for each sealer: 16 random bytes
  that a process draws when it starts. The nonce is the sealer's running number. So no nonce comes
  twice under a key: not after a restart, and not where several gateways share a group's key.
- All that stands before the ciphertexts is authenticated with each of them, and so are the topic
  and what else is `bound` to the message, such as its purposes: nothing can be changed, left out,
  moved to another message or to another topic.
- An attribute is named by the mark of its key, so that only who may read it can tell which it is.
- The time of publication is never before the start of a key that seals: clocks may differ.
- Whatever does not open under a key that is held is refused as a whole. An attribute without
  such a key is no error: it stays closed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.errors import PenstockError
from penstock.trust.key_ring import MARK_BYTES, SECRET_BYTES, GroupKey, KeyRing

MAGIC: Final = b"\x9ePS\x02"
"""No text and no JSON begins so; the last byte is the version."""
SEALER_BYTES: Final = 16
TAG_BYTES: Final = 16
MAX_ATTRIBUTES: Final = 255
_HEAD: Final = struct.Struct(f">4sB16sQ{SEALER_BYTES}sQB")
_ENTRY: Final = struct.Struct(f">{MARK_BYTES}sII")
_NONCE_PREFIX: Final = bytes(4)
_INFO: Final = b"penstock sealed message"
_NUMBERS: Final = 1 << 32
"""Messages under one sealer; then another is drawn."""
_CIPHERS: Final = 10_000
"""Keys of sealers that are remembered ready to use; beyond, they are derived anew."""


class SealedMessageError(PenstockError):
    """A sealed message that is damaged, forged, or not for this topic."""


class Kind(IntEnum):
    """What the ciphertexts of a message are."""

    WHOLE = 1
    ATTRIBUTES = 2


class _Entry(NamedTuple):
    mark: bytes
    generation: int
    sealed: bytes


@dataclass(frozen=True, slots=True)
class SealedMessage:
    """A message as it crosses the broker; nothing in it is believed before it opens."""

    kind: Kind
    event_type: UUID
    published: int
    sealer: bytes
    number: int
    entries: tuple[_Entry, ...]
    head: bytes


def is_sealed(payload: bytes) -> bool:
    """Tell whether a payload says that it is sealed."""
    return payload.startswith(MAGIC[:-1])


def read_sealed(payload: bytes) -> SealedMessage:
    """Read the parts of a sealed message."""
    if payload[: len(MAGIC)] != MAGIC:
        shown = payload[: len(MAGIC)].hex()
        message = f"begins with {shown}, not with {MAGIC.hex()} → not sealed, or a newer version"
        raise SealedMessageError(message)
    if len(payload) < _HEAD.size:
        message = f"{len(payload)} bytes, and a sealed message has {_HEAD.size} or more"
        raise SealedMessageError(message)
    _, kind, type_, published, sealer, number, count = _HEAD.unpack_from(payload)
    if kind not in Kind.__members__.values():
        message = f"kind {kind} of a sealed message is unknown"
        raise SealedMessageError(message)
    end = _HEAD.size + count * _ENTRY.size
    if len(payload) < end or count == 0 or (kind == Kind.WHOLE and count != 1):
        message = f"a sealed message of kind {kind} with {count} parts in {len(payload)} bytes"
        raise SealedMessageError(message)
    entries, at = [], end
    for mark, generation, length in _ENTRY.iter_unpack(payload[_HEAD.size : end]):
        entries.append(_Entry(mark, generation, payload[at : at + length]))
        at += length
    if at != len(payload) or any(len(it.sealed) < TAG_BYTES for it in entries):
        message = f"{len(payload)} bytes, where the parts of the sealed message end at {at}"
        raise SealedMessageError(message)
    head = payload[:end]
    return SealedMessage(
        Kind(kind), UUID(bytes=type_), published, sealer, number, (*entries,), head
    )


class Sealer:
    """Seals what a gateway publishes. Used by one thread, of one process."""

    def __init__(self, ring: KeyRing, random_bytes: Callable[[int], bytes]) -> None:
        self._ring = ring
        self._random_bytes = random_bytes
        self._number = _NUMBERS
        self._sealer = b""
        self._ciphers: dict[bytes, AESGCM] = {}

    def seal_whole(
        self, event_type: UUID, topic: str, payload: bytes, now: int, bound: bytes = b""
    ) -> bytes:
        """Seal a payload under the key of its event type."""
        context = _context(topic, bound)
        return self._seal(Kind.WHOLE, event_type, context, {event_type: payload}, now)

    def seal_attributes(
        self,
        event_type: UUID,
        topic: str,
        attributes: Mapping[UUID, bytes],
        now: int,
        bound: bytes = b"",
    ) -> bytes:
        """Seal each attribute under its own key."""
        if not 0 < len(attributes) <= MAX_ATTRIBUTES:
            message = f"{len(attributes)} attributes to seal, where 1 to {MAX_ATTRIBUTES} can be"
            raise SealedMessageError(message)
        return self._seal(Kind.ATTRIBUTES, event_type, _context(topic, bound), attributes, now)

    def _seal(
        self, kind: Kind, event_type: UUID, context: bytes, parts: Mapping[UUID, bytes], now: int
    ) -> bytes:
        if self._number >= _NUMBERS:
            self._sealer, self._number = self._random_bytes(SEALER_BYTES), 0
            self._ciphers.clear()
        number = self._number
        self._number += 1
        keys = [self._ring.newest(it, now) for it in parts]
        published = max(now, *(it.start for it in keys))
        fixed = (MAGIC, kind, event_type.bytes, published, self._sealer, number, len(parts))
        head = _HEAD.pack(*fixed) + b"".join(
            _ENTRY.pack(key.mark, key.generation, len(part) + TAG_BYTES)
            for key, part in zip(keys, parts.values(), strict=True)
        )
        nonce, context = _nonce(number), context + head
        return head + b"".join(
            self._cipher(key).encrypt(nonce, part, context)
            for key, part in zip(keys, parts.values(), strict=True)
        )

    def _cipher(self, key: GroupKey) -> AESGCM:
        found = self._ciphers.get(key.mark)
        if found is None:
            if len(self._ciphers) >= _CIPHERS:
                self._ciphers.clear()
            found = self._ciphers[key.mark] = _derive(key, self._sealer)
        return found


class Opener:
    """Opens what a gateway receives, as far as its keys allow. Used by one thread."""

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._ciphers: dict[tuple[bytes, bytes], AESGCM] = {}

    def open_whole(
        self, sealed: SealedMessage, topic: str, now: int, bound: bytes = b""
    ) -> bytes | None:
        """Return the payload, or None without the key."""
        if sealed.kind is not Kind.WHOLE:
            message = "sealed by attributes, and read as a whole"
            raise SealedMessageError(message)
        opened = self._open(sealed, _context(topic, bound), now)
        return opened.get(sealed.event_type)

    def open_attributes(
        self, sealed: SealedMessage, topic: str, now: int, bound: bytes = b""
    ) -> dict[UUID, bytes]:
        """Return the attributes whose keys are held."""
        if sealed.kind is not Kind.ATTRIBUTES:
            message = "sealed as a whole, and read by attributes"
            raise SealedMessageError(message)
        return self._open(sealed, _context(topic, bound), now)

    def _open(self, sealed: SealedMessage, context: bytes, now: int) -> dict[UUID, bytes]:
        nonce, context = _nonce(sealed.number), context + sealed.head
        opened: dict[UUID, bytes] = {}
        for mark, generation, ciphertext in sealed.entries:
            key = self._ring.find(mark, sealed.published, now)
            if key is None or key.generation != generation:
                continue
            place = (mark, sealed.sealer)
            cipher = self._ciphers.get(place) or _derive(key, sealed.sealer)
            try:
                plain = cipher.decrypt(nonce, ciphertext, context)
            except InvalidTag:
                message = f"a message of {sealed.event_type} does not open under its key → it was "
                message += "changed, or sealed for another topic or other properties"
                raise SealedMessageError(message) from None
            if key.resource in opened:
                message = f"a message of {sealed.event_type} holds an attribute twice"
                raise SealedMessageError(message)
            opened[key.resource] = plain
            # Remembered only now: who forges sealers leaves nothing behind.
            if len(self._ciphers) >= _CIPHERS:
                self._ciphers.clear()
            self._ciphers[place] = cipher
        return opened


def _derive(key: GroupKey, sealer: bytes) -> AESGCM:
    named = _INFO + key.resource.bytes + key.generation.to_bytes(4, "big")
    return AESGCM(HKDF(SHA256(), SECRET_BYTES, salt=sealer, info=named).derive(key.secret))


def _nonce(number: int) -> bytes:
    return _NONCE_PREFIX + number.to_bytes(8, "big")


def _context(topic: str, bound: bytes) -> bytes:
    named = topic.encode()
    sizes = len(named).to_bytes(2, "big") + len(bound).to_bytes(4, "big")
    return sizes + named + bound
