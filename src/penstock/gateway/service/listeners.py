"""Where clients connect: TCP, TLS, WebSocket, each under a name of the settings.

    accept ──▶ Arrivals: room for it? ──▶ TLS, where the listener has it ──▶ client connection
                        │no
                        ▼
                      closed

Rules that hold here:
- A connection is counted and limited as soon as it is accepted: nothing is read from a peer
  that is over a limit, and no TLS handshake begins with it.
- A few connections are accepted at a time, so that those that exist are served in between.
- TLS is 1.2 or newer, and is not renegotiated. Where a listener names certificates for
  clients, every client has to show one that they vouch for.
- Several processes may listen on one address (`workers`); the system spreads clients.
- Changed TLS files are used from the next handshake on; connections that exist stay. Where they
  cannot be used, as while one of two has been replaced, the earlier ones stay in use.
- A listener that cannot be opened stops the start, with the reason. While the process has no
  descriptors left, connections wait in the system's queue.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from penstock.config.listeners import ListenerSettings
from penstock.config.secrets import SecretFile
from penstock.errors import UnavailableError, quote
from penstock.gateway.connection.context import FAREWELL_SECONDS
from penstock.gateway.connection.downstream import Downstream
from penstock.gateway.connection.websocket import OriginRule, WebSocketServer
from penstock.gateway.limits import TICK_SECONDS, Arrival, ArrivalCounters, Arrivals, Limits
from penstock.telemetry import get_logger

BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 16
_PAUSE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 2.0
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = get_logger("listener")

MakeClient = Callable[[Arrival], asyncio.Protocol]


class Listener:
    """One open listener."""

    def __init__(
        self,
        name: str,
        sockets: list[socket.socket],
        make: MakeClient,
        arrivals: Arrivals,
        counters: ArrivalCounters,
        *,
        tls: TlsContext | None,
        handshake_seconds: float,
    ) -> None:
        self.name = name
        self.port = int(sockets[0].getsockname()[1])
        self._sockets = sockets
        self._make = make
        self._arrivals = arrivals
        self._counters = counters
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False
        self._looking: asyncio.TimerHandle | None = None
        for it in sockets:
            self._loop.add_reader(it, self._accept, it)
        if tls is not None:
            self._look_at_files(tls)

    def reload(self) -> None:
        """Read the TLS files again, whether they look changed or not."""
        if self._tls is not None:
            self._tls.refresh(forced=True)

    def _look_at_files(self, tls: TlsContext) -> None:
        tls.refresh()
        self._looking = self._loop.call_later(_LOOK_SECONDS, self._look_at_files, tls)

    def close(self) -> None:
        """Stop accepting; connections stay, but not those that still negotiate TLS."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
        for it in self._sockets:
            self._loop.remove_reader(it)
            it.close()
        for task in self._opening:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(listening)
                # Else nobody waits, or the one that did is gone.
                return
            # In the next step: those that have just left are off the count by then.
            self._loop.call_soon(self._admit, accepted, str(address[0]))

    def _pause(self, listening: socket.socket) -> None:
        self._counters.turned_away("descriptors")
        self._loop.remove_reader(listening)
        self._loop.call_later(_PAUSE_SECONDS, self._resume, listening)

    def _resume(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening, self._accept, listening)

    def _admit(self, accepted: socket.socket, address: str) -> None:
        opening = _Opening(accepted)
        if self._closed:
            accepted.close()
            return
        arrival = self._arrivals.admit(address, opening.cut_off, tls=self._tls is not None)
        if arrival is None:
            self._counters.opened("limit")
            accepted.close()
            return
        task = self._loop.create_task(self._open(opening, arrival))
        opening.task = task
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, opening: _Opening, arrival: Arrival) -> None:
        accepted = opening.socket
        accepted.settimeout(0)
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening.transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._make(arrival),
                accepted,
                ssl=self._tls.current if self._tls else None,
                ssl_handshake_timeout=self._handshake_seconds if self._tls else None,
                ssl_shutdown_timeout=FAREWELL_SECONDS if self._tls else None,
            )
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            # Certificates that do not fit, bytes that are no TLS, silence; or it gave way.
            if not isinstance(error, asyncio.CancelledError):
                self._counters.turned_away("tls")
            self._arrivals.leave(arrival)
            accepted.close()
        else:
            self._arrivals.secured(arrival)
            opening.task = None


class _Opening:
    """A connection that was accepted, and how it is ended whatever its stage."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def cut_off(self) -> None:
        """End it at once."""
        if self.task is not None:
            self.task.cancel()
            # Whatever has it by now sees its end.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        elif self.transport is not None:
            self.transport.abort()


async def open_listener(
    make_client: Callable[[Arrival], Downstream],
    arrivals: Arrivals,
    counters: ArrivalCounters,
    name: str,
    settings: ListenerSettings,
    limits: Limits,
    *,
    shared: bool,
) -> Listener:
    """Listen as the settings say."""
    make: MakeClient = make_client
    if settings.transport in {"websocket", "websocket-tls"}:
        origins = OriginRule(settings.origins, encrypted=settings.encrypted)

        def make_websocket(arrival: Arrival) -> WebSocketServer:
            return WebSocketServer(make_client(arrival), settings.path, origins)

        make = make_websocket
    tls = TlsContext(settings) if settings.encrypted else None
    sockets = await open_sockets(name, settings.host, settings.port, shared=shared)
    return Listener(
        name,
        sockets,
        make,
        arrivals,
        counters,
        tls=tls,
        handshake_seconds=float(limits.connect_ticks - 1) * TICK_SECONDS,
    )


async def open_sockets(name: str, host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """Open the sockets of a listener, or say why they cannot be opened."""
    try:
        return await _listen(host, port, shared=shared)
    except OSError as error:
        raise UnavailableError(
            f"the listener {quote(name)} cannot listen on {host} port {port}:"
            f" {error.strerror or error}",
            fix="choose a free port, or end the program that has it",
        ) from None


async def _listen(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """Open the sockets of an address; a name may stand for several."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
    )
    sockets: list[socket.socket] = []
    with ExitStack() as undo:
        for family, _, _, _, address in dict.fromkeys(found):
            it = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                it.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                it.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            it.settimeout(0)
            it.bind(address)
            it.listen(BACKLOG)
            sockets.append(it)
        undo.pop_all()
    return sockets


class TlsFiles(Protocol):
    """The files that a listener needs for TLS."""

    @property
    def certificate(self) -> Path | None:
        """The certificate chain."""

    @property
    def key(self) -> SecretFile | None:
        """The file of its key."""

    @property
    def client_ca(self) -> Path | None:
        """The certificates that those of clients are checked against."""


Mark = tuple[tuple[int, int, int] | None, ...]


def mark_files(files: TlsFiles) -> Mark:
    """Return what tells states of the TLS files of a listener apart."""

    def look(path: Path | None) -> tuple[int, int, int] | None:
        try:
            found = path.stat() if path is not None else None
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_ino, found.st_size)

    key = files.key.path if files.key is not None else None
    return tuple(map(look, (files.certificate, key, files.client_ca)))


class TlsContext:
    """The TLS context of a listener, made anew when its files have changed."""

    def __init__(
        self, files: TlsFiles, make: Callable[[Any], ssl.SSLContext] | None = None
    ) -> None:
        self._files = files
        self._make = make or make_context
        self._mark = mark_files(files)
        self.current = self._make(files)

    def refresh(self, *, forced: bool = False) -> None:
        """Use the files as they are now, if they can be used."""
        mark = mark_files(self._files)
        if mark == self._mark and not forced:
            return
        self._mark = mark
        try:
            self.current = self._make(self._files)
        except UnavailableError as error:
            _log.error("changed TLS files cannot be used: the earlier ones stay", error=error)
        else:
            _log.info("TLS files were read again")


def make_context(settings: TlsFiles) -> ssl.SSLContext:
    """Make the TLS context of a listener."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    certificate, key = settings.certificate, settings.key
    if certificate is None or key is None:
        raise UnavailableError("a TLS listener has no certificate or key", fix="set both")
    key.read()  # raises where others could read the key
    try:
        # An encrypted key is refused: without a password given, OpenSSL would ask the terminal.
        context.load_cert_chain(str(certificate), str(key.path), password=b"")
        if settings.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(str(settings.client_ca))
    except (OSError, ssl.SSLError) as error:
        raise UnavailableError(
            f"the TLS files of a listener cannot be used: {error.strerror or error}",
            fix=f"check {certificate}, {key.path} and the client certificates",
        ) from None
    return context
