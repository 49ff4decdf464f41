"""How to tell that a part is ready: it accepts connections, or its /readyz says so."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Protocol

ANSWER_LIMIT = 64
TRY_SECONDS = 2.0


class Probe(Protocol):
    """Asks a part once whether it is ready; it never raises and never hangs."""

    async def ask(self) -> bool:
        """Whether the part is ready now."""


@dataclass(frozen=True, slots=True)
class TcpProbe:
    """Ready when something accepts a connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    async def ask(self) -> bool:
        """Connect and close."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TRY_SECONDS):
                _, writer = await asyncio.open_connection(self.host, self.port)
                writer.close()
                return True
        return False


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when a GET is answered with status 200."""

    host: str
    port: int
    path: str = "/readyz"

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"

    async def ask(self) -> bool:
        """Ask and read the first line of the answer."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(TRY_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self.host, self.port, limit=ANSWER_LIMIT
                )
                try:
                    request = f"GET {self.path} HTTP/1.0\r\nHost: {self.host}\r\n\r\n"
                    writer.write(request.encode())
                    answer = await reader.read(ANSWER_LIMIT)
                    return answer.startswith((b"HTTP/1.0 200 ", b"HTTP/1.1 200 "))
                finally:
                    writer.close()
        return False
