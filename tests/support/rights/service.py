"""A service that is told of privacy requests, over real HTTP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from penstock.rights.dispatch.message import SIGNATURE


class Service:
    """A service that keeps what it is told, and answers as the test says."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[str, Any], str, bytes]] = []
        self.status = 202
        self.delay = 0.0
        self.last = 0.0
        self.headers: list[dict[str, str]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                told = (json.loads(body), self.headers.get(SIGNATURE, ""), body)
                service.headers.append(dict(self.headers))
                service.told.append(told)
                service.last = time.monotonic()
                time.sleep(service.delay)
                self.send_response(service.status)
                if service.status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self.server.server_port}/privacy?x=1"


@contextmanager
def serving() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.server.serve_forever, daemon=True)
    thread.start()
    yield service
    service.server.shutdown()
    service.server.server_close()
    thread.join()
