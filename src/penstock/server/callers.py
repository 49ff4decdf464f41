"""Who calls, how much one caller may ask for, and what callers are told where something is wrong.

    certificate? ──yes──▶ its common name
        │no
    Bearer TOKEN ──▶ store: hash, expiry, revoked? ──▶ its user
    Basic USER:PASSWORD ──▶ the gateway's file of passwords, in turn ──▶ the user
        │neither
        ▼
      not known (401)

Rules that hold here:
- Whatever is wrong, the answer is the same.
- A token is looked up for every call: once revoked, it proves nothing.
- Passwords are checked beside the loop and with the gateway's back-off. Listeners without TLS are
  at addresses of this machine alone, so neither passwords nor tokens cross a network in clear.
- A network that shows wrong tokens all the time is no longer looked up for, except for tokens
  that were good a moment ago: it keeps no caller out that has one.
- A bucket of `burst` fills up with `rate` per second. What costs more than is in it is refused,
  and costs nothing.
- Who is denied again and again has to wait: denials are recorded, and nobody fills the audit log.
- What is remembered is bounded: who has not called for longest is forgotten first. A bucket that
  was forgotten is full again, so it is forgotten only when it would be full.
- What callers are told has one shape, with the next step. What does not exist and what belongs to
  others is one problem. Nothing that others said, and no place of this machine, is in it: of
  the store it is told that it is away, the reason goes to the log.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from penstock.errors import DeniedError, InvalidError, PenstockError, UnavailableError, UsageError
from penstock.gateway.connection.authentication import (
    PASSWORD_LIMIT,
    Authenticator,
    RefusedError,
    check_name,
    common_name,
)
from penstock.gateway.limits import network_of
from penstock.store.follower import StaleError
from penstock.store.rights.requests import KeyReusedError
from penstock.telemetry import counter, get_logger

_log = get_logger("server")
MOST_PROBLEMS: Final = 10
PROBLEM_BYTES: Final = 500
"""Together they fit into the metadata of gRPC."""
AGAIN: Final = "try again in a while; under the same key it stays one request"


class Problem(NamedTuple):
    """What a caller is told."""

    status: HTTPStatus
    code: str
    message: str
    fix: str
    retry_after: int | None = None


MISSHAPEN: Final = Problem(
    HTTPStatus.UNPROCESSABLE_ENTITY,
    "invalid",
    "the call does not have the shape that is described",
    "correct the places that are named; see /openapi.json",
)


class UnauthenticatedError(PenstockError):
    """Nobody knows who calls."""

    def __init__(self) -> None:
        super().__init__(
            "the caller is not known",
            fix="send `Authorization: Bearer TOKEN`; `penstock tokens make` makes one",
        )


class TooManyError(PenstockError):
    """A caller is over a limit."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message, fix="slow down, and repeat it under the same key")
        self.seconds = seconds


class TooLargeError(PenstockError):
    """A body is over the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is over {limit} bytes", fix="send less at a time")


_TOLD: Final[tuple[tuple[type[PenstockError], HTTPStatus, str], ...]] = (
    (UnauthenticatedError, HTTPStatus.UNAUTHORIZED, "unauthenticated"),
    (TooManyError, HTTPStatus.TOO_MANY_REQUESTS, "too-many"),
    (TooLargeError, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too-large"),
    (DeniedError, HTTPStatus.NOT_FOUND, "unknown"),
    (KeyReusedError, HTTPStatus.CONFLICT, "key-reused"),
    (UsageError, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
    (InvalidError, HTTPStatus.UNPROCESSABLE_ENTITY, "invalid"),
)
"""What callers are told in the words of the error itself; the first that fits counts."""


def list_problems(error: Exception) -> list[str]:
    """Return what is wrong with definitions, problem by problem: they were just sent."""
    if not isinstance(error, InvalidError):
        return []
    texts = [str(it).encode()[:PROBLEM_BYTES] for it in error.problems[:MOST_PROBLEMS]]
    return [it.decode(errors="ignore") for it in texts]


def describe(error: Exception) -> Problem:
    """Return what a caller is told of an error."""
    for kind, status, code in _TOLD:
        if isinstance(error, kind):
            wait = max(1, round(error.seconds)) if isinstance(error, TooManyError) else None
            return Problem(status, code, error.message, error.fix or "see /openapi.json", wait)
    if isinstance(error, StaleError):
        message = "whether the definitions are current cannot be known"
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "stale", message, AGAIN, 1)
    if isinstance(error, UnavailableError):
        _log.error("the store failed a call", error=error)
        message = "the store is not available"
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", message, AGAIN, 1)
    _log.error("a call failed", error=error)
    return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "failed", "the server failed", AGAIN)


MOST_CALLERS: Final = 10_000


class RateLimit:
    """Buckets of callers."""

    def __init__(
        self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_for(self, caller: str, cost: float = 1.0) -> float:
        """Take from a bucket; return 0, or the seconds until there is enough in it."""
        now = self._clock()
        level = self._level(caller, now)
        # What is larger than a bucket empties a full one.
        needed = min(cost, self._burst)
        if level >= needed:
            self._buckets[caller] = (level - needed, now)
            self._buckets.move_to_end(caller)
            self._forget(now)
            return 0.0
        return (needed - level) / self._rate

    def is_empty(self, caller: str) -> bool:
        """Say whether there is nothing left in a bucket, and take nothing."""
        return self._level(caller, self._clock()) < 1.0

    def _level(self, caller: str, now: float) -> float:
        level, at = self._buckets.get(caller, (self._burst, now))
        return min(self._burst, level + (now - at) * self._rate)

    def _forget(self, now: float) -> None:
        while self._buckets:
            oldest = next(iter(self._buckets))
            full = self._level(oldest, now) >= self._burst
            if not full and len(self._buckets) <= MOST_CALLERS:
                return
            del self._buckets[oldest]


class CallLimits:
    """The limits of users."""

    def __init__(self, rate: RateLimit, denials: RateLimit, at_a_time: int, in_all: int) -> None:
        self._rate = rate
        self._denials = denials
        self._at_a_time = at_a_time
        self._in_all = in_all
        self._running: dict[str, int] = {}
        self._total = 0

    @contextmanager
    def admit(self, user: str, cost: float = 1.0) -> Iterator[None]:
        """Let a call of a user be worked on; refuse it with the seconds to wait."""
        running = self._running.get(user, 0)
        if running >= self._at_a_time:
            raise TooManyError("too many calls of this user are under way", 1.0)
        if self._total >= self._in_all:
            raise TooManyError("too many calls are under way", 1.0)
        if self._denials.is_empty(user):
            raise TooManyError("this user asks for what is not theirs, again and again", 60.0)
        wait = self._rate.wait_for(user, cost)
        if wait:
            raise TooManyError("this user calls too often", wait)
        self._running[user] = running + 1
        self._total += 1
        try:
            yield
        except DeniedError:
            self._denials.wait_for(user)
            raise
        finally:
            self._total -= 1
            left = self._running[user] - 1
            if left:
                self._running[user] = left
            else:
                del self._running[user]


FAILURES_PER_SECOND: Final = 2.0
FAILURES_AT_ONCE: Final = 50.0
HEADER_LIMIT: Final = 2 * PASSWORD_LIMIT
_KNOWN_SECONDS: Final = 60.0
_MOST_KNOWN: Final = 10_000

CALLERS: Final = counter(
    "penstock_server_callers",
    "Attempts to prove who calls, by what was shown and what came of it.",
    proof=("certificate", "token", "password", "none"),
    outcome=("known", "unknown", "busy"),
)

FindUser = Callable[[str], Awaitable[str | None]]
"""Asks the store whom a token proves."""


class CallerAuthenticator:
    """Finds out who calls."""

    def __init__(
        self,
        find_user: FindUser,
        passwords: Authenticator | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_user = find_user
        self._passwords = passwords
        self._clock = clock
        self._failures = RateLimit(FAILURES_PER_SECOND, FAILURES_AT_ONCE, clock)
        self._known: OrderedDict[bytes, float] = OrderedDict()

    async def identify(
        self, authorization: str | None, certificate: dict[str, Any] | None, address: str
    ) -> str:
        """Return the user that calls, or raise `UnauthenticatedError`."""
        if certificate:
            return self._identify_certificate(certificate)
        scheme, _, given = (authorization or "").partition(" ")
        if len(given) > HEADER_LIMIT:
            raise self._refuse("none")
        match scheme.lower():
            case "bearer":
                return await self._identify_token(given.strip(), address)
            case "basic":
                return await self._identify_password(given.strip(), address)
        raise self._refuse("none")

    def close(self) -> None:
        """End the threads that check passwords."""
        if self._passwords is not None:
            self._passwords.close()

    def _identify_certificate(self, certificate: dict[str, Any]) -> str:
        try:
            user = check_name(common_name(certificate))
        except RefusedError:
            raise self._refuse("certificate") from None
        CALLERS["certificate", "known"].inc()
        return user

    async def _identify_token(self, token: str, address: str) -> str:
        network, digest = network_of(address), sha256(token.encode()).digest()
        if self._failures.is_empty(network) and not self._was_good(digest):
            CALLERS["token", "busy"].inc()
            raise TooManyError("too many wrong tokens came from this network", 1.0)
        user = await self._find_user(token)
        if user is None:
            self._known.pop(digest, None)
            self._failures.wait_for(network)
            raise self._refuse("token")
        self._known[digest] = self._clock()
        self._known.move_to_end(digest)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        CALLERS["token", "known"].inc()
        return user

    def _was_good(self, digest: bytes) -> bool:
        return self._clock() - self._known.get(digest, -_KNOWN_SECONDS) < _KNOWN_SECONDS

    async def _identify_password(self, given: str, address: str) -> str:
        try:
            name, colon, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise self._refuse("password") from None
        if self._passwords is None or not colon:
            raise self._refuse("password")
        try:
            check_name(name)
            right = await self._passwords.check_password(name, password.encode(), address)
        except RefusedError as error:
            if error.why == "busy":
                CALLERS["password", "busy"].inc()
                raise TooManyError("too many log-ins at the moment", 1.0) from None
            raise self._refuse("password") from None
        if not right:
            raise self._refuse("password")
        CALLERS["password", "known"].inc()
        return name

    @staticmethod
    def _refuse(proof: str) -> UnauthenticatedError:
        CALLERS[proof, "unknown"].inc()
        return UnauthenticatedError()
