"""Before a route: who calls, and no more of a body than is allowed.

Rules that hold here:
- Who calls is found out before anything of the body is read: strangers send nothing into memory.
- A body is read whole, up to the limit, before it is looked at.
- Where the answer comes before the body was read, the connection ends with it.
- Nothing but the description at /openapi.json is told to who is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server.callers import CallerAuthenticator
from penstock.server.problems import Problem, TooLargeError, UnauthenticatedError, describe

_USER: Final = "user"
CONNECTION: Final = "connection"


class Caller(Protocol):
    """The connection that a call comes by."""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What the caller showed, checked by TLS."""

    @property
    def address(self) -> str:
        """Where the caller is."""

    def known(self) -> None:
        """Take note that somebody has proved who they are."""


def caller_of(request: Request) -> str:
    """Return the user that calls."""
    user = request.scope["state"].get(_USER)
    if not isinstance(user, str):
        raise UnauthenticatedError
    return user


class _GoneError(Exception):
    """The caller went away in the middle of a body."""


class Gatekeeper:
    """Stands before the application."""

    def __init__(
        self,
        app: ASGIApp,
        authenticator: CallerAuthenticator,
        body_limit: int,
        answer: Callable[[Problem], Response],
        public: Mapping[str, bytes],
    ) -> None:
        """`public` has JSON that everybody may read, by its path."""
        self._public = public
        self._app = app
        self._authenticator = authenticator
        self._limit = body_limit
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        found = self._public.get(scope["path"]) if scope["method"] in {"GET", "HEAD"} else None
        if found is not None:
            await Response(found, media_type="application/json")(scope, receive, send)
            return
        try:
            await self._identify(scope)
            body = await self._read(scope, receive)
        except _GoneError:
            return
        except PenstockError as error:
            response = self._answer(describe(error))
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _identify(self, scope: Scope) -> None:
        caller: Caller = scope["state"][CONNECTION]
        given = Headers(scope=scope).getlist("authorization")
        if len(given) > 1:
            raise UnauthenticatedError
        certificate = dict(caller.certificate) if caller.certificate else None
        scope["state"][_USER] = await self._authenticator.identify(
            given[0] if given else None, certificate, caller.address
        )
        caller.known()

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > self._limit:
            raise TooLargeError(self._limit)
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise _GoneError
            body += message.get("body", b"")
            if len(body) > self._limit:
                raise TooLargeError(self._limit)
            if not message.get("more_body", False):
                return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the application the body that was read; then what the connection says."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
