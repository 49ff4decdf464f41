"""Tells services by HTTP, at addresses that they may have.

Rules that hold here:
- A name is resolved once; the address that was checked is the one that is connected to, so that
  no second answer of a name server leads elsewhere. Redirects are not followed.
- Addresses of this machine and of private networks are refused unless the settings allow them:
  a subscriber's URI must not become a way into the network.
- Every wait is bounded. Of an answer no more than its status counts, and nothing is logged.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from typing_extensions import override

from penstock.rights.dispatch.message import (
    SIGNATURE,
    Dispatched,
    Notification,
    Outcome,
    derive_key,
    sign,
)

MOST_BYTES: Final = 64 * 1024
_SUCCESS: Final = range(200, 300)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressRefusedError(OSError):
    """A name leads to an address that services may not have."""


class HttpDispatcher:
    """Tells services by POST."""

    def __init__(
        self,
        secret: bytes,
        *,
        allowed: Sequence[Network] = (),
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._secret = secret
        self._allowed = tuple(allowed)
        self._timeout = timeout
        self._tls = tls or ssl.create_default_context()
        self._clock = clock

    def send(self, uri: str, notification: Notification, *, synchronous: bool) -> Dispatched:
        """Tell a service; in the synchronous way its answer says that it is done."""
        parts = urlsplit(uri)
        try:
            address = self._resolve(parts.hostname or "", parts.port or _port(parts.scheme))
            status = self._post(parts.scheme, parts.hostname or "", address, uri, notification)
        except AddressRefusedError:
            return Dispatched(Outcome.FAILED, "address-refused")
        except TimeoutError:
            return Dispatched(Outcome.FAILED, "timeout")
        except ssl.SSLError:
            return Dispatched(Outcome.FAILED, "tls")
        except (OSError, http.client.HTTPException):
            return Dispatched(Outcome.FAILED, "unreachable")
        if status not in _SUCCESS:
            return Dispatched(Outcome.FAILED, f"http-{status}")
        # 202 says that it will be done: completed later, as in the asynchronous way.
        done = synchronous and status != http.client.ACCEPTED
        return Dispatched(Outcome.DONE if done else Outcome.SENT)

    def _resolve(self, host: str, port: int) -> tuple[str, int]:
        """Return the address of a host; refuse it if any of them may not be connected to."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(it[4][0]) for it in found]
        for address in addresses:
            if not self._may_reach(address):
                raise AddressRefusedError
        return addresses[0], port

    def _may_reach(self, address: str) -> bool:
        found = ipaddress.ip_address(address.partition("%")[0])
        mapped = getattr(found, "ipv4_mapped", None)
        if mapped is not None:
            found = mapped
        if any(found in network for network in self._allowed):
            return True
        return found.is_global and not found.is_multicast

    def _post(
        self,
        scheme: str,
        host: str,
        address: tuple[str, int],
        uri: str,
        notification: Notification,
    ) -> int:
        tls = self._tls if scheme == "https" else None
        connection = _PinnedConnection(host, address, self._timeout, tls)
        body = notification.to_json()
        key = derive_key(self._secret, notification.subscriber)
        parts = urlsplit(uri)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "Idempotency-Key": f"{notification.request}/{notification.subscriber}",
            SIGNATURE: sign(key, int(self._clock()), body),
        }
        try:
            connection.request("POST", target, body, headers)
            with connection.getresponse() as answer:
                answer.read(MOST_BYTES)
                return answer.status
        finally:
            connection.close()


class _PinnedConnection(http.client.HTTPConnection):
    """A connection to an address that was checked, whatever its name leads to by now."""

    def __init__(
        self, host: str, address: tuple[str, int], timeout: float, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(host, address[1], timeout=timeout)
        self._address = address
        self._context = tls

    @override
    def connect(self) -> None:
        plain = socket.create_connection(self._address, self.timeout)
        if self._context is not None:
            self.sock = self._context.wrap_socket(plain, server_hostname=self.host)
        else:
            self.sock = plain


def _port(scheme: str) -> int:
    return http.client.HTTPS_PORT if scheme == "https" else http.client.HTTP_PORT
