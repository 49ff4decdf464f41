"""From the accept of a connection by HTTP/1.1 to a route: counted, timed, who calls, how much.

    accept ─▶ Arrivals: room for it? ─▶ TLS ─▶ HttpConnection ─▶ Gatekeeper ─▶ routes

Rules that hold here:
- Connections are limited as those of the gateway are: before TLS, fairly among networks, and
  tighter while nobody has proved who they are.
- A call takes no longer than the limit, from the end of the one before to the last byte of its
  answer: who sends or reads slowly is cut off.
- What is on the way is not asked: headers that proxies add change nothing.
- Who calls is found out before anything of the body is read: strangers send nothing into memory.
- A body is read whole, up to the limit, before it is looked at.
- Where the answer comes before the body was read, the connection ends with it.
- Nothing but the description at /openapi.json is told to who is not known.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.config.listeners import HttpListener
from penstock.config.rights import HttpLimitSettings
from penstock.errors import PenstockError
from penstock.gateway.limits import Arrival, Arrivals
from penstock.gateway.service.listeners import (
    Listener,
    TlsContext,
    make_context,
    open_sockets,
)
from penstock.server.callers import (
    CallerAuthenticator,
    Problem,
    TooLargeError,
    UnauthenticatedError,
    describe,
)
from penstock.telemetry import counter, get_logger

_USER: Final = "user"
_CONNECTION: Final = "connection"


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
        caller: HttpConnection = scope["state"][_CONNECTION]
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


KEEP_ALIVE_SECONDS: Final = 5
HANDSHAKE_SECONDS: Final = 10.0
HEADERS_LIMIT: Final = 32 * 1024
GRACE_SECONDS: Final = 5.0

TURNED_AWAY: Final = counter(
    "penstock_server_turned_away",
    "Connections that were closed because of a limit, by the cause.",
    cause=("address", "connections", "handshakes", "tls", "descriptors", "bytes", "timeout"),
)
OPENED: Final = counter(
    "penstock_server_opened", "How connections began.", outcome=("established", "limit")
)

_log = get_logger("server")


class ServerCounters:
    """Counts connections."""

    def opened(self, outcome: str) -> None:
        """Count how the opening of a connection ended."""
        OPENED[outcome].inc()

    def turned_away(self, cause: str) -> bool:
        """Count a connection that was closed because of a limit."""
        TURNED_AWAY[cause].inc()
        return True


class HttpConnection(H11Protocol):
    """One connection of a caller."""

    def __init__(
        self, config: Config, state: ServerState, arrival: Arrival, arrivals: Arrivals, most: float
    ) -> None:
        super().__init__(config, state, {_CONNECTION: self}, asyncio.get_running_loop())
        self._arrival = arrival
        self._arrivals = arrivals
        self._most = most
        self._timer: asyncio.TimerHandle | None = None
        self.certificate: Mapping[str, Any] | None = None
        self.address = arrival.address

    def known(self) -> None:
        """Take note that somebody has proved who they are."""
        self._arrivals.connected(self._arrival)

    def keep_open(self) -> None:
        """Let the answer that is under way take as long as it takes: who sends it bounds it."""
        self._stop_timer()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        found = transport.get_extra_info("peercert")
        self.certificate = found or None
        OPENED["established"].inc()
        self._start_timer()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._arrivals.leave(self._arrival)
        super().connection_lost(exc)

    @override
    def on_response_complete(self) -> None:
        self._start_timer()
        super().on_response_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._most, self._cut_off)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        TURNED_AWAY["timeout"].inc()
        self.transport.abort()


class HttpServer:
    """The connections of all REST listeners."""

    def __init__(self, app: Any, limits: HttpLimitSettings) -> None:
        self._limits = limits
        self._counters = ServerCounters()
        self._arrivals = Arrivals(limits, self._counters)
        self._state = ServerState()
        self._config = Config(
            app,
            http=HttpConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            # What is no HTTP is worth no line: strangers would fill the log.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=HEADERS_LIMIT,
        )
        self._config.load()
        self._listeners: list[Listener] = []

    async def listen(self, name: str, settings: HttpListener) -> Listener:
        """Listen as the settings say."""
        tls = TlsContext(settings, make_server_context) if settings.encrypted else None
        sockets = await open_sockets(name, settings.host, settings.port, shared=False)
        listener = Listener(
            name,
            sockets,
            self._make,
            self._arrivals,
            self._counters,
            tls=tls,
            handshake_seconds=HANDSHAKE_SECONDS,
        )
        self._listeners.append(listener)
        _log.info("listening", kind=settings.transport, host=settings.host, port=listener.port)
        return listener

    async def close(self) -> None:
        """Accept nobody any more, and let the calls that are under way end."""
        for listener in self._listeners:
            listener.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=GRACE_SECONDS)
        for left in list(self._state.connections):
            if isinstance(left, HttpConnection):
                left.transport.abort()

    def _make(self, arrival: Arrival) -> HttpConnection:
        return HttpConnection(
            self._config, self._state, arrival, self._arrivals, self._limits.timeout
        )


def make_server_context(settings: HttpListener) -> ssl.SSLContext:
    """Make the TLS context of a listener; clients may show a certificate where it is asked for."""
    context = make_context(settings)
    if settings.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
