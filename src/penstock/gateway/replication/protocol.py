"""The replication protocol between gateways: its messages, and the channel that seals them.

    hello ──▶          a new key of X25519 each way, in the clear
         ◀── hello
    sealed "ready" ──▶ ◀──      keys from both and from the gateways' common secret
    sealed messages, numbered   ──▶ ◀──

    follower ──▶ leader:  Join, Ping, Ack, Submit, Leave
    leader ──▶ follower:  Pong, StateUpdate, NextDeadline, PublishResponse, Durable

Rules that hold here:
- No sockets here: bytes in, messages out.
- Each direction has a key of its own. Messages are numbered, so that none can be replayed,
  dropped or reordered. Without the secret nobody can make the first of them.
- Forward secrecy: keys last as long as the connection, so that what is recorded today cannot be
  read when the secret becomes known.
- Before the other is known to be a gateway its messages may have 128 bytes; then up to a limit.
- A message is its kind, the length of its head, its head as JSON, and a raw payload.
- What cannot be decoded raises `ChannelError`: the connection is over.
- Moments are those of the leader's `boot_clock`, in seconds (`ClockBound` translates them).
- Both ends run the same version of the protocol (`VERSION`); another is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.errors import PenstockError
from penstock.gateway.publications import Fingerprint, PublishOutcome, PublishRequest
from penstock.telemetry import safe_text

MARK: Final = b"PENSTOCK-SHARE-1"
_KEY: Final = 32
_HELLO: Final = len(MARK) + _KEY
_SIZE: Final = 4
_NONCE: Final = 12
_READY: Final = b"ready"
_STRANGER_BYTES: Final = 128
_PURPOSE: Final = b"penstock sharing of detection v1\0"


@safe_text
class ChannelError(PenstockError):
    """The other side does not speak as a gateway of ours would."""


def derive_secret(key: bytes) -> bytes:
    """Return the secret of the channel, made from a key that the gateways share."""
    return HKDF(SHA256(), _KEY, None, _PURPOSE + b"secret").derive(key)


class Channel:
    """One end of a connection between gateways."""

    def __init__(self, secret: bytes, *, caller: bool, limit: int) -> None:
        self.ready = False
        """Whether the other is known to have the secret."""
        self._secret = secret
        self._caller = caller
        self._limit = limit
        self._private = X25519PrivateKey.generate()
        self.hello: Final = MARK + self._private.public_key().public_bytes_raw()
        """What is sent first."""
        self._buffer = bytearray()
        self._sealing: AESGCM | None = None
        self._opening: AESGCM | None = None
        self._sealed = 0
        self._opened = 0

    @property
    def greeting(self) -> bytes:
        """What is sent as soon as the other's hello is here: the proof of having the secret."""
        return self.seal(_READY)

    @property
    def agreed(self) -> bool:
        """Whether there are keys, so that messages can be sealed."""
        return self._sealing is not None

    def seal(self, message: bytes) -> bytes:
        """Return a message as it is sent."""
        if self._sealing is None:
            raise ChannelError("nothing can be sealed before both have said hello")
        nonce = self._sealed.to_bytes(_NONCE, "big")
        self._sealed += 1
        sealed = self._sealing.encrypt(nonce, message, None)
        return len(sealed).to_bytes(_SIZE, "big") + sealed

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take what came; yield the messages that are whole."""
        buffer = self._buffer
        buffer += data
        opening = self._opening
        if opening is None:
            if len(buffer) < _HELLO:
                return
            opening = self._agree(bytes(buffer[:_HELLO]))
            del buffer[:_HELLO]
        start = 0
        try:
            while len(buffer) >= start + _SIZE:
                size = int.from_bytes(buffer[start : start + _SIZE], "big")
                if size > (self._limit if self.ready else _STRANGER_BYTES):
                    raise ChannelError("a message between gateways is too long")
                if len(buffer) < start + _SIZE + size:
                    break
                sealed = bytes(buffer[start + _SIZE : start + _SIZE + size])
                start += _SIZE + size
                message = self._open(opening, sealed)
                if self.ready:
                    yield message
                elif message != _READY:
                    raise ChannelError("a gateway began without a greeting")
                else:
                    self.ready = True
        finally:
            del buffer[:start]

    def _agree(self, hello: bytes) -> AESGCM:
        if hello[: len(MARK)] != MARK:
            raise ChannelError("this is not how gateways greet each other")
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(hello[len(MARK) :]))
        except ValueError:
            raise ChannelError("the other side sent no usable key") from None
        both = self.hello + hello if self._caller else hello + self.hello
        keys = HKDF(SHA256(), 2 * _KEY, self._secret, _PURPOSE + both).derive(shared)
        first, second = AESGCM(keys[:_KEY]), AESGCM(keys[_KEY:])
        self._sealing, self._opening = (first, second) if self._caller else (second, first)
        return self._opening

    def _open(self, opening: AESGCM, sealed: bytes) -> bytes:
        nonce = self._opened.to_bytes(_NONCE, "big")
        self._opened += 1
        try:
            return opening.decrypt(nonce, sealed, None)
        except (InvalidTag, ValueError):
            raise ChannelError(
                "the other gateway does not have the same secret"
                if not self.ready
                else "a message between gateways was changed on its way",
                fix="give all gateways of one store the same `audit.pseudonym_key`",
            ) from None


VERSION: Final = 2
_HEAD: Final = 4

SituationRow = tuple[str, str, str | None]
"""A scenario, its subject, and the situation that it is in now."""


class Join(NamedTuple):
    """A gateway wants to follow: to get the situations, and to submit messages."""

    follower: str
    """Names the process, not the connection."""
    version: int = VERSION


class Ping(NamedTuple):
    """A follower is alive, and asks whether the leader still is."""

    number: int


class Pong(NamedTuple):
    """The answer to a ping: its sender is the leader."""

    number: int
    now: float
    due: float | None
    """When time alone may change a situation; None: never."""
    situations: list[SituationRow] | None = None
    """All that hold, in the first answer to a follower."""
    lease: float = 0.0
    """How long replicated state is valid after a ping; set together with the situations."""


class StateUpdate(NamedTuple):
    """Situations have changed."""

    number: int
    rows: list[SituationRow]
    due: float | None
    whole: bool = False
    """Whether the rows are all situations that hold."""


class NextDeadline(NamedTuple):
    """Time alone changes no situation before this moment."""

    due: float | None


class Ack(NamedTuple):
    """A follower has applied all updates up to a number."""

    number: int


class Leave(NamedTuple):
    """A follower no longer relies on replicated state."""


class Submit(NamedTuple):
    """A follower submits a message of its client, to be detected and decided on."""

    number: int
    oldest: int
    """No number below it will be submitted again."""
    epoch: int
    """Of the definitions that the follower knows: the leader must know them, too."""
    request: PublishRequest


class PublishResponse(NamedTuple):
    """What became of a submitted message."""

    number: int
    outcome: PublishOutcome
    rule: str
    event: bool
    """Whether it was one, so that `Durable` follows."""


class Durable(NamedTuple):
    """The events of submitted messages are in the journal."""

    numbers: list[int]


Message = (
    Join
    | Ping
    | Pong
    | StateUpdate
    | NextDeadline
    | Ack
    | Leave
    | Submit
    | PublishResponse
    | Durable
)

_KINDS: Final[tuple[type[Any], ...]] = (
    *(Join, Ping, Pong, StateUpdate, NextDeadline, Ack, Leave, Submit, PublishResponse, Durable),
)
_NUMBERS: Final = {kind: bytes([number]) for number, kind in enumerate(_KINDS)}


def encode(message: Message) -> bytes:
    """Return a message as bytes."""
    fields: list[Any] = list(message)
    payload = b""
    if type(message) is Submit:
        user, client, topic, payload, rest, place, fingerprint = message.request
        fields[-1] = [user, client, topic, rest, place, fingerprint]
    head = json.dumps(fields, separators=(",", ":")).encode()
    return _NUMBERS[type(message)] + len(head).to_bytes(_HEAD, "big") + head + payload


def decode(data: bytes) -> Message:
    """Read a message."""
    try:
        kind = _KINDS[data[0]]
        end = 1 + _HEAD + int.from_bytes(data[1 : 1 + _HEAD], "big")
        fields = json.loads(data[1 + _HEAD : end])
        if kind is Submit:
            user, client, topic, rest, place, found = fields[-1]
            fingerprint = None if found is None else Fingerprint(*found)
            fields[-1] = PublishRequest(user, client, topic, data[end:], rest, place, fingerprint)
        elif kind is PublishResponse:
            fields[1] = PublishOutcome(fields[1])
        made: Message = kind(*fields)
    except (ValueError, TypeError, IndexError, RecursionError):
        raise ChannelError("a message between gateways cannot be read") from None
    return made


def check_version(join: Join) -> None:
    """Refuse a gateway with another version of the protocol."""
    if join.version != VERSION:
        raise ChannelError(
            "the other gateway shares detection in another way",
            fix="run the same version of Penstock on all gateways of one store",
        )
