"""What can go wrong for a client, in words that name the filter and the purpose."""

from __future__ import annotations

from penstock.errors import DeniedError, PenstockError, UnavailableError, quote

_UNSPECIFIED = 0x80
"""The only failure that MQTT 3.1.1 knows; up to here a code says nothing about the cause."""


class NotationError(PenstockError):
    """A filter, a client id or a purpose cannot be written in a topic."""


class NotConnectedError(UnavailableError):
    """There is no connection, or none could be made."""


class NoAnswerError(UnavailableError):
    """The gateway did not answer in time."""


class RefusedError(DeniedError):
    """The gateway refused; `filter` and `purpose` say what, `reason` says why where known."""

    def __init__(self, action: str, *, code: int, reason: str | None, fix: str) -> None:
        cause = reason or ("no reason given" if code <= _UNSPECIFIED else f"code {code:#04x}")
        super().__init__(f"{action} was refused: {cause}", fix=fix)
        self.code = code
        self.reason = reason
        self.filter: str | None = None
        self.purpose: str | None = None


def refused_subscription(
    filter_: str, purpose: str | None, *, code: int, reason: str | None
) -> RefusedError:
    """Return the error for a refused SUBSCRIBE."""
    purposes = f"for the purpose {quote(purpose)}" if purpose else "without a purpose"
    error = RefusedError(
        f"the subscription to {quote(filter_)} {purposes}",
        code=code,
        reason=reason,
        fix="ask with `penstock check` which purposes the topic is reserved for",
    )
    error.filter, error.purpose = filter_, purpose
    return error


def refused_message(action: str, *, code: int, reason: str | None) -> RefusedError:
    """Return the error for a refused PUBLISH: a message or a command."""
    return RefusedError(
        action,
        code=code,
        reason=reason,
        fix="ask the operator for the right, or correct what the reason names",
    )
