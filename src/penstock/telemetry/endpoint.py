"""A small HTTP server for `/metrics`, `/healthz` and `/readyz`.

Each process has its own, on a port of its own. It runs in threads, so that it answers
while an event loop is busy.

Rules that hold here:
- It listens on loopback by default: the figures are not secret, but nobody
  outside needs them.
- It serves three fixed paths and reads no body. Connections are few, short and timed: where
  there are too many, the oldest is closed for the newest, so that nobody holds them all.
- However often it is asked, figures are rendered a few times a second at most: asking takes
  no time away from what is measured.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Self

from penstock.errors import UnavailableError, quote
from penstock.telemetry import metrics
from penstock.telemetry.health import FRESH_SECONDS, Health, HealthReport

LOOPBACK = "127.0.0.1"
CONNECTIONS_LIMIT = 16
THREADS_LIMIT = 4 * CONNECTIONS_LIMIT
SECONDS_LIMIT = 5.0
STOP_SECONDS = 10.0
POLL_SECONDS = 0.1


class Endpoint:
    """The server; it runs from `start` to `stop`, or inside a `with` block."""

    def __init__(
        self,
        health: Health,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        render: Callable[[], bytes] = metrics.render,
    ) -> None:
        self.health = health
        self._address = (host, port)
        self._render = render
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port it listens on; the one the system chose where 0 was asked for."""
        return self._server.server_address[1] if self._server else self._address[1]

    @property
    def url(self) -> str:
        """The address to put the paths behind."""
        host = self._address[0]
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def start(self) -> None:
        """Listen and answer."""
        host, port = self._address
        try:
            self._server = _Server(self._address, self.health, self._render)
        except OSError as error:
            raise UnavailableError(
                f"cannot listen on {quote(host)} port {port} for metrics: {error.strerror}",
                fix="choose a free port, or 0 for any",
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_SECONDS,), name="telemetry", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; answers under way are finished or timed out by themselves."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(STOP_SECONDS)
        self._server = self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(HTTPServer):
    """One thread per connection, and no more connections than the limit."""

    server_address: tuple[str, int]
    request_queue_size = 4 * CONNECTIONS_LIMIT

    def __init__(
        self, address: tuple[str, int], health: Health, render: Callable[[], bytes]
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.health = health
        self._threads = threading.BoundedSemaphore(THREADS_LIMIT)
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        self.page = _Page(render)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking the name service who we are."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()[:2]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; the oldest connection gives way where there is no place."""
        if not self._threads.acquire(blocking=False):
            # Those that gave way still wait for a check.
            self.shutdown_request(request)
            return
        with self._lock:
            crowded = len(self._open) >= CONNECTIONS_LIMIT
            oldest = next(iter(self._open)) if crowded else None
            if oldest is not None:
                del self._open[oldest]
            self._open[request] = None
        if oldest is not None:
            _shut(oldest)
        threading.Thread(
            target=self._answer,
            args=(request, client_address),
            name="telemetry-answer",
            daemon=True,
        ).start()

    def _answer(self, request: Any, client_address: Any) -> None:
        # One request may take this long in all, however slowly it is sent.
        timer = threading.Timer(SECONDS_LIMIT, _shut, [request])
        timer.daemon = True
        timer.start()
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # The asker went away, or the timer did its work.
        finally:
            timer.cancel()
            with self._lock:
                self._open.pop(request, None)
            self.shutdown_request(request)
            self._threads.release()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return


class _Page:
    """The figures as they were rendered last."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._rendered = 0.0
        self._body = b""

    def get(self) -> bytes:
        """Return figures that are fresh, rendering them where need be."""
        with self._lock:
            if not self._body or time.monotonic() - self._rendered > FRESH_SECONDS:
                self._body = self._render()
                self._rendered = time.monotonic()
            return self._body


class _Handler(BaseHTTPRequestHandler):
    """Answers one request and closes."""

    server: _Server
    server_version = "penstock"
    sys_version = ""
    timeout = SECONDS_LIMIT

    def do_GET(self) -> None:
        """Answer with one of the three pages."""
        match self.path.partition("?")[0]:
            case "/metrics":
                self._send(HTTPStatus.OK, metrics.CONTENT_TYPE, self.server.page.get())
            case "/healthz":
                self._send_report(self.server.health.liveness())
            case "/readyz":
                self._send_report(self.server.health.readiness())
            case _:
                self._send_json(
                    HTTPStatus.NOT_FOUND, {"pages": ["/metrics", "/healthz", "/readyz"]}
                )

    do_HEAD = do_GET  # noqa: N815 (the base class looks for this name)

    def _send_report(self, report: HealthReport) -> None:
        status = HTTPStatus.OK if report.ok else HTTPStatus.SERVICE_UNAVAILABLE
        data = {"ok": report.ok, "checks": sorted(report.checks), "failing": report.failing}
        if report.details:
            data["details"] = report.details
        self._send_json(status, data)

    def _send_json(self, status: HTTPStatus, data: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(data).encode() + b"\n")

    def _send(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """Stay silent: probes come every few seconds."""
