"""What callers are told where something is wrong: one shape, with the next step.

Rules that hold here:
- What does not exist and what belongs to others is one problem.
- Nothing that others said, and no place of this machine, is in it: of the store it is told that
  it is away, the reason goes to the log.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple

from penstock.errors import DeniedError, InvalidError, PenstockError, UnavailableError, UsageError
from penstock.store.follower import StaleError
from penstock.store.rights.requests import KeyReusedError
from penstock.telemetry import get_logger

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
