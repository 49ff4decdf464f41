"""Where clients connect: TCP, TLS, WebSocket, each under a name of the settings.

Rules that hold here:
- TLS is 1.2 or newer. Where a listener names certificates for clients, every client has to
  show one that they vouch for.
- Several processes may listen on one address (`workers`); the system spreads clients.
- A listener that cannot be opened stops the start, with the reason.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from penstock.config.sections.gateway import ListenerSettings
from penstock.errors import UnavailableError, quote
from penstock.gateway.connection.downstream import Downstream
from penstock.gateway.connection.websocket import WebSocketServer
from penstock.gateway.limits import TICK_SECONDS, Limits

BACKLOG = 1024


class Listener:
    """One open listener."""

    def __init__(self, name: str, server: asyncio.Server, port: int) -> None:
        self.name = name
        self.port = port
        self._server = server

    def close(self) -> None:
        """Stop accepting; connections stay."""
        self._server.close()


async def open_listener(
    make_client: Callable[[], Downstream],
    name: str,
    settings: ListenerSettings,
    limits: Limits,
    *,
    shared: bool,
) -> Listener:
    """Listen as the settings say."""
    context = make_context(settings) if settings.encrypted else None
    # A TLS handshake comes before everything that has a limit of ours.
    handshake = float(limits.connect_ticks - 1) * TICK_SECONDS if context else None
    factory: Callable[[], asyncio.Protocol] = make_client
    if settings.transport in {"websocket", "websocket-tls"}:

        def make_websocket() -> WebSocketServer:
            return WebSocketServer(make_client, settings.path)

        factory = make_websocket
    try:
        server = await asyncio.get_running_loop().create_server(
            factory,
            settings.host,
            settings.port,
            ssl=context,
            ssl_handshake_timeout=handshake,
            backlog=BACKLOG,
            reuse_port=shared or None,
        )
    except OSError as error:
        raise UnavailableError(
            f"the listener {quote(name)} cannot listen on {settings.host} port {settings.port}:"
            f" {error.strerror or error}",
            fix="choose a free port, or end the program that has it",
        ) from None
    port = server.sockets[0].getsockname()[1]
    return Listener(name, server, port)


def make_context(settings: ListenerSettings) -> ssl.SSLContext:
    """Make the TLS context of a listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = settings.certificate, settings.key
    if certificate is None or key is None:
        raise UnavailableError("a TLS listener has no certificate or key", fix="set both")
    key.read()  # raises where others could read the key
    try:
        context.load_cert_chain(str(certificate), str(key.path))
        if settings.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(str(settings.client_ca))
    except (OSError, ssl.SSLError) as error:
        raise UnavailableError(
            f"the TLS files of a listener cannot be used: {error.strerror or error}",
            fix=f"check {certificate}, {key.path} and the client certificates",
        ) from None
    return context
