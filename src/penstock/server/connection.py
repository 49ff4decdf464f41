"""Connections of callers by HTTP/1.1: counted, timed, and with what TLS says of the caller.

    accept ─▶ Arrivals: room for it? ─▶ TLS ─▶ HttpConnection ─▶ Gatekeeper ─▶ routes

Rules that hold here:
- Connections are limited as those of the gateway are: before TLS, fairly among networks, and
  tighter while nobody has proved who they are.
- A call takes no longer than the limit, from the end of the one before to the last byte of its
  answer: who sends or reads slowly is cut off.
- What is on the way is not asked: headers that proxies add change nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.config.sections.server import ServerLimitSettings, ServerListenerSettings
from penstock.gateway.connection.arrivals import Arrival, Arrivals
from penstock.gateway.service.listeners import (
    Listener,
    TlsContext,
    make_context,
    open_sockets,
)
from penstock.server.rest.gatekeeper import CONNECTION
from penstock.telemetry import counter, get_logger

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
        super().__init__(config, state, {CONNECTION: self}, asyncio.get_running_loop())
        self._arrival = arrival
        self._arrivals = arrivals
        self._most = most
        self._timer: asyncio.TimerHandle | None = None
        self.certificate: Mapping[str, Any] | None = None
        self.address = arrival.address

    def known(self) -> None:
        """Take note that somebody has proved who they are."""
        self._arrivals.connected(self._arrival)

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

    def __init__(self, app: Any, limits: ServerLimitSettings) -> None:
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

    async def listen(self, name: str, settings: ServerListenerSettings) -> Listener:
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
        _log.info("listening", kind=settings.protocol, host=settings.host, port=listener.port)
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


def make_server_context(settings: ServerListenerSettings) -> ssl.SSLContext:
    """Make the TLS context of a listener; clients may show a certificate where it is asked for."""
    context = make_context(settings)
    if settings.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
