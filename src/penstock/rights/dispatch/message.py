"""What a service is told of a request, and how it knows that we told it.

Rules that hold here:
- A notification carries no state: for a choice, the service fetches the latest one.
- It is signed under a key of the service's own: `t=SECONDS,v1=HEX` with HMAC-SHA-256 over the
  seconds, a full stop and the body. A service refuses what is old, so that nobody can replay it.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from enum import Enum
from typing import Final

SIGNATURE: Final = "Penstock-Signature"
OLDEST_SECONDS: Final = 300


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


def derive_key(secret: bytes, subscriber: str) -> bytes:
    """Return the key that notifications to a service are signed with."""
    return hmac.digest(secret, b"penstock webhook " + subscriber.encode(), "sha256")


def sign(key: bytes, seconds: int, body: bytes) -> str:
    """Return the signature of a body sent at a time."""
    digest = hmac.digest(key, b"%d." % seconds + body, "sha256").hex()
    return f"t={seconds},v1={digest}"


def verify(key: bytes, signature: str, body: bytes, now: int) -> bool:
    """Say whether a signature is ours and fresh."""
    parts = dict(it.partition("=")[::2] for it in signature.split(","))
    moment = parts.get("t", "")
    if not (moment.isascii() and moment.isdigit()) or len(moment) > len(str(now)) + 1:
        return False
    if abs(now - int(moment)) > OLDEST_SECONDS:
        return False
    return hmac.compare_digest(sign(key, int(moment), body).encode(), signature.encode())
