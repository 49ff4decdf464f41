"""Ways to the server of privacy requests: one interface, REST behind it.

Rules that hold here:
- A call has a name and fields; the answer has fields. Both are the same for every transport.
- What may be tried again is an `UnreachableError`, what never helps to repeat is a
  `RejectedError`: nothing else is raised.
- A token is sent over TLS, or to this machine; never elsewhere.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote as quote_path
from urllib.parse import urlsplit

from penstock.errors import DeniedError, PenstockError, UnavailableError, UsageError, quote

ANSWER_LIMIT: Final = 8 << 20
_AGAIN: Final = frozenset({401, 408, 429, 500, 502, 503, 504})

# Call → method, path, fields of the path. What is left over is the body.
_CALLS: Final[Mapping[str, tuple[str, str, tuple[str, ...]]]] = {
    "submit": ("POST", "/v1/requests", ()),
    "signal": ("POST", "/v1/signals", ()),
    "status": ("GET", "/v1/requests/{request}", ("request",)),
    "publisher": ("GET", "/v1/publishers/{publisher}", ("publisher",)),
    "offered_states": ("POST", "/v1/publishers/{publisher}/states", ("publisher",)),
    "receipt": ("POST", "/v1/requests/{request}/receipt", ("request",)),
    "contact": ("POST", "/v1/publishers/{publisher}/contact", ("publisher",)),
    "states": ("POST", "/v1/subscribers/{subscriber}/states", ("subscriber",)),
    "acknowledge": ("POST", "/v1/requests/{request}/acknowledge", ("request",)),
    "complete": ("POST", "/v1/requests/{request}/complete", ("request",)),
}


class UnreachableError(UnavailableError):
    """The server could not be reached, or not now: the same call may be tried again."""


class RejectedError(DeniedError):
    """The server understood the call and refused it; to repeat it changes nothing."""

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.code = code


class ForgedError(PenstockError):
    """A notification is not from Penstock, or too old."""


@dataclass(frozen=True, slots=True)
class State:
    """What holds for a person: of a control, or of one of its categories (else it is empty)."""

    control: str
    category: str
    state: str
    version: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that the server has accepted, and what holds since."""

    request: str
    status: str
    repeated: bool
    states: tuple[State, ...]


class Transport(Protocol):
    """A way to the server."""

    def call(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the server; raise `UnreachableError` or `RejectedError`."""

    def close(self) -> None:
        """Let go of connections."""


def read_states(found: list[dict[str, Any]]) -> tuple[State, ...]:
    """Read states out of an answer."""
    return tuple(
        State(it["control"], it.get("category", ""), it["state"], int(it.get("version", 0)))
        for it in found
    )


def read_submitted(found: Mapping[str, Any]) -> Submitted:
    """Read what became of a submission out of an answer."""
    return Submitted(
        found["request"],
        found["status"],
        bool(found.get("repeated", False)),
        read_states(found.get("states", [])),
    )


class RestTransport:
    """REST, one connection for each thread."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = 10.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
            raise UsageError(f"{quote(url)} is not an address", fix="write https://HOST:PORT")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise UsageError(f"{quote(url)} would send the token in clear", fix="write https://…")
        self._host, self._port = parts.hostname, parts.port
        self._tls = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        self._token = token
        self._timeout = timeout
        self._threads = threading.local()

    def call(self, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the server."""
        method, template, used = _CALLS[name]
        path = template.format(**{it: quote_path(str(fields[it]), safe="") for it in used})
        rest = {key: value for key, value in fields.items() if key not in used}
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if name == "signal":
            headers["Sec-GPC"] = "1"
        body = None
        if method == "POST":
            body = json.dumps(rest).encode()
            headers["Content-Type"] = "application/json"
        try:
            status, answer = self._send(method, path, body, headers)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise UnreachableError(
                f"the server at {self._host} cannot be reached ({type(error).__name__})",
                fix="check that it is up; the same call may be tried again",
            ) from None
        return read_answer(status, answer)

    def close(self) -> None:
        """Close the connection of this thread."""
        connection = getattr(self._threads, "connection", None)
        if connection is not None:
            connection.close()
            self._threads.connection = None

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, Any]:
        connection = getattr(self._threads, "connection", None)
        kept = connection is not None
        connection = connection or self._connect()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException):
            connection.close()
            self._threads.connection = None
            if not kept:
                raise
            # The server closes what is idle. Keys make it safe to send again what it may have.
            connection = self._connect()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
        self._threads.connection = connection
        with answer:
            text = answer.read(ANSWER_LIMIT)
            if answer.will_close:
                self.close()
        return answer.status, json.loads(text) if text else {}

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)


def read_answer(status: int, answer: Any) -> dict[str, Any]:
    """Return the fields of an answer, or raise what it means."""
    found: dict[str, Any] = answer if isinstance(answer, dict) else {}
    if status < http.client.BAD_REQUEST:
        return found
    message = str(found.get("message", f"the server answered {status}"))
    fix = str(found.get("fix", "see the log of the server"))
    if status in _AGAIN:
        raise UnreachableError(message, fix=fix)
    raise RejectedError(str(found.get("code", status)), message, fix)


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
