"""What a service is told of a request, how it knows that we told it, and what a channel is.

    notification ──▶ Signing ──▶ Letter: body, signature, idempotency key ──▶ channel ──▶ service

Rules that hold here:
- A notification carries no state: for a choice, the service fetches the latest one.
- It is signed under a key of the service's own: `t=SECONDS,v1=HEX` with HMAC-SHA-256 over the
  seconds, a full stop and the body. A service that is called refuses what is old, so that nobody
  can replay it. A message may wait long in a queue: there the idempotency key tells a replay.
- A channel never raises: what goes wrong is an outcome with a short code, which names nobody.
"""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from penstock.definitions import DefinitionSet
from penstock.errors import PenstockError

SIGNATURE: Final = "Penstock-Signature"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
OLDEST_SECONDS: Final = 300
CODE_LIMIT: Final = 64
_NO_CODE: Final = re.compile(r"[^a-z0-9.-]+")


class Outcome(Enum):
    """What became of telling a service."""

    SENT = "sent"
    DONE = "done"
    """It has answered that it did its part."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The outcome, and where it failed a short code of why."""

    outcome: Outcome
    trouble: str = ""
    again: float | None = None
    """After how many seconds a service of our own goes on, where it has to wait."""


SENT: Final = Dispatched(Outcome.SENT)


class LeaseLostError(PenstockError):
    """Another worker has the request now."""


def failed(*words: str) -> Dispatched:
    """Return a failure with a code made of these words, whatever an answer put into them."""
    code = _NO_CODE.sub("-", "-".join(words).lower())
    return Dispatched(Outcome.FAILED, code[:CODE_LIMIT])


Troubles = Sequence[tuple[type[BaseException], str]]
"""Errors, the special ones before the general ones, and the code of each."""


def find_trouble(error: BaseException, troubles: Troubles) -> Dispatched:
    """Return an error as a failure, with its code."""
    return failed(next(code for kind, code in troubles if isinstance(error, kind)))


NOT_CONFIGURED: Final = failed("not-configured")


@dataclass(frozen=True, slots=True)
class Notification:
    """What a service is told."""

    request: str
    subscriber: str
    control: str
    action: str
    subject: str
    categories: tuple[str, ...]
    attempt: int

    def to_json(self) -> bytes:
        """Write it down; `changed` stands for both choices."""
        stateful = self.action in {"opt-in", "opt-out"}
        content = {
            "request": self.request,
            "subscriber": self.subscriber,
            "control": self.control,
            "action": "changed" if stateful else self.action,
            "subject": self.subject,
            "categories": list(self.categories),
            "attempt": self.attempt,
        }
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class Letter:
    """A signed message, ready for a channel."""

    body: bytes
    signature: str
    key: str
    """The same however often a service is told of one request."""
    request: str

    @property
    def headers(self) -> dict[str, str]:
        """What goes beside the body: headers, attributes, or user properties."""
        return {IDEMPOTENCY_KEY: self.key, SIGNATURE: self.signature}


class BuiltIn(Protocol):
    """A service of Penstock's own, which is not told by a channel."""

    def run(
        self, notification: Notification, definitions: DefinitionSet, keep: Callable[[], None]
    ) -> Dispatched:
        """Do what is asked for; `keep` renews the lease and raises where it is lost."""


class Channel(Protocol):
    """A way to tell services."""

    def send(self, place: str, letter: Letter) -> Dispatched:
        """Hand a letter over; what is `SENT` is durable at the other side, or was answered."""

    def close(self) -> None:
        """Let go of connections."""


class Signing:
    """Signs what services are told."""

    def __init__(self, secret: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def seal(self, notification: Notification) -> Letter:
        """Return a notification as a signed letter."""
        key = f"{notification.request}/{notification.subscriber}"
        body = notification.to_json()
        signature = self.sign(notification.subscriber, body)
        return Letter(body, signature, key, notification.request)

    def sign(self, name: str, body: bytes) -> str:
        """Return the signature of a body that goes to a service or front end."""
        return sign(derive_key(self._secret, name), int(self._clock()), body)


def derive_key(secret: bytes, subscriber: str) -> bytes:
    """Return the key that notifications to a service are signed with."""
    return hmac.digest(secret, b"penstock webhook " + subscriber.encode(), "sha256")


def sign(key: bytes, seconds: int, body: bytes) -> str:
    """Return the signature of a body sent at a time."""
    digest = hmac.digest(key, b"%d." % seconds + body, "sha256").hex()
    return f"t={seconds},v1={digest}"


def verify(
    key: bytes, signature: str, body: bytes, now: int, *, oldest: int | None = OLDEST_SECONDS
) -> bool:
    """Say whether a signature is ours and fresh; without `oldest`, of whatever age."""
    parts = dict(it.partition("=")[::2] for it in signature.split(","))
    moment = parts.get("t", "")
    if not (moment.isascii() and moment.isdigit()) or len(moment) > len(str(now)) + 1:
        return False
    if oldest is not None and abs(now - int(moment)) > oldest:
        return False
    return hmac.compare_digest(sign(key, int(moment), body).encode(), signature.encode())
