"""Passes of the console: it logs in at the gateway as the user who is signed in there.

    console: key of the installation, user, end ─▶ pass ─▶ CONNECT ─▶ gateway: the same key ─▶ user

Rules that hold here:
- The key is derived from the key of pseudonyms, under a purpose of its own. Only programs of this
  installation have it; whoever has it could read the store as well.
- A pass names one user and ends by itself; the session that it opened ends with it.
- With it a user has what they have with their password, and nothing more: the gateway decides
  each message as for every client.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Final

PASS_SECONDS: Final = 600
_PREFIX: Final = b"penstock-console:"
_PURPOSE: Final = b"penstock console pass v1"
_LONGEST: Final = 200


def derive_pass_key(secret: bytes) -> bytes:
    """Return the key of passes, made from a key that gateways and console share."""
    return hmac.digest(secret, _PURPOSE, sha256)


def make_pass(key: bytes, user: str, clock: Callable[[], float] = time.time) -> bytes:
    """Return what proves to a gateway that the console speaks for a user."""
    end = str(int(clock()) + PASS_SECONDS).encode()
    return _PREFIX + end + b":" + _sign(key, user, end)


def looks_like_pass(password: bytes | None) -> bool:
    """Say whether a password has the form of a pass."""
    return password is not None and password.startswith(_PREFIX)


def check_pass(
    key: bytes, user: str, password: bytes, clock: Callable[[], float] = time.time
) -> float | None:
    """Return until when a pass is good for a user, in seconds since 1970; None where it is not."""
    end, _, signature = password[:_LONGEST].removeprefix(_PREFIX).partition(b":")
    right = hmac.compare_digest(_sign(key, user, end), signature)
    if not right or not end.isdigit():
        return None
    until = float(end)
    return until if clock() < until <= clock() + PASS_SECONDS else None


def _sign(key: bytes, user: str, end: bytes) -> bytes:
    message = end + b"\0" + user.encode("utf-8", "surrogatepass")
    return hmac.digest(key, message, sha256).hex().encode()
