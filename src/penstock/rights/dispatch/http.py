"""Calls by HTTP, to addresses that may be called.

Rules that hold here:
- A name is resolved once; the address that was checked is the one that is connected to, so that
  no second answer of a name server leads elsewhere. Redirects are not followed.
- Addresses of this machine and of private networks are refused unless the settings allow them:
  a URI of a definition must not become a way into the network. So is an IPv6 address that
  leads to such an IPv4 address by translation, or that is no global unicast address.
- Without TLS only networks of the settings are called: a call names a person.
- A call ends within its time, however slowly an answer trickles in. Of an answer no more than its
  status counts, and nothing is logged.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from typing_extensions import override

from penstock.rights.dispatch.message import (
    SENT,
    Dispatched,
    Letter,
    Outcome,
    failed,
    find_trouble,
)

MOST_BYTES: Final = 64 * 1024
_SUCCESS: Final = range(200, 300)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_IPV6_GLOBAL: Final = ipaddress.ip_network("2000::/3")
_IPV6_6TO4: Final = ipaddress.ip_network("2002::/16")
_IPV6_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052
_IPV4_6TO4_RELAYS: Final = ipaddress.ip_network("192.88.99.0/24")
_IPV4_BITS: Final = 0xFFFF_FFFF


class AddressRefusedError(OSError):
    """A name leads to an address that may not be called."""


class NotEncryptedError(OSError):
    """A call would cross a network in clear."""


_TROUBLES: Final = (
    (NotEncryptedError, "not-encrypted"),
    (AddressRefusedError, "address-refused"),
    (TimeoutError, "timeout"),
    (ssl.SSLError, "tls"),
    (http.client.HTTPException, "no-http"),
    (OSError, "unreachable"),
    # A name that no name server can be asked for.
    (ValueError, "unreachable"),
)


class Caller:
    """Calls servers by POST."""

    def __init__(
        self,
        *,
        allowed: Sequence[Network] = (),
        timeout: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = tuple(allowed)
        self._timeout = timeout
        self._tls = tls or ssl.create_default_context()

    def post(self, uri: str, body: bytes, headers: Mapping[str, str]) -> int | Dispatched:
        """Return the status of the answer, one of success, or the failure."""
        parts = urlsplit(uri)
        try:
            address = self._resolve(parts.hostname or "", parts.port or _port(parts.scheme))
            if parts.scheme != "https" and not self._is_allowed(address[0]):
                raise NotEncryptedError
            status = self._post(parts.scheme, parts.hostname or "", address, uri, body, headers)
        except (OSError, ValueError, http.client.HTTPException) as error:
            return find_trouble(error, _TROUBLES)
        return status if status in _SUCCESS else failed("http", str(status))

    def _resolve(self, host: str, port: int) -> tuple[str, int]:
        """Return the address of a host; refuse it if any of them may not be connected to."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(it[4][0]) for it in found]
        for address in addresses:
            if not self._may_reach(address):
                raise AddressRefusedError
        return addresses[0], port

    def _is_allowed(self, address: str) -> bool:
        """Say whether an address is in a network of the settings."""
        return any(_read_address(address) in network for network in self._allowed)

    def _may_reach(self, address: str) -> bool:
        if self._is_allowed(address):
            return True
        found = _read_address(address)
        if isinstance(found, ipaddress.IPv4Address):
            return _is_public(found) and found not in _IPV4_6TO4_RELAYS
        if found in _IPV6_NAT64:
            return self._may_reach(str(ipaddress.IPv4Address(int(found) & _IPV4_BITS)))
        return _is_public(found) and found in _IPV6_GLOBAL and found not in _IPV6_6TO4

    def _post(
        self,
        scheme: str,
        host: str,
        address: tuple[str, int],
        uri: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> int:
        tls = self._tls if scheme == "https" else None
        connection = _PinnedConnection(host, address, self._timeout, tls)
        parts = urlsplit(uri)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        told = {"Host": parts.netloc, "Content-Type": "application/json", **headers}
        # A limit on each read alone would let an answer of one byte at a time last for ever.
        timer = threading.Timer(self._timeout, connection.end)
        timer.daemon = True
        timer.start()
        try:
            connection.request("POST", target, body, told)
            with connection.getresponse() as answer:
                answer.read(MOST_BYTES)
                return answer.status
        except (OSError, http.client.HTTPException):
            if connection.ended.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            connection.close()


class HttpChannel:
    """Tells services by calls; in the synchronous way an answer says that it is done."""

    def __init__(self, caller: Caller, *, synchronous: bool) -> None:
        self._caller = caller
        self._synchronous = synchronous

    def send(self, place: str, letter: Letter) -> Dispatched:
        """Call a service."""
        status = self._caller.post(place, letter.body, letter.headers)
        if isinstance(status, Dispatched):
            return status
        # 202 says that it will be done: completed later, as in the asynchronous way.
        done = self._synchronous and status != http.client.ACCEPTED
        return Dispatched(Outcome.DONE) if done else SENT

    def close(self) -> None:
        """Nothing is kept open."""


class _PinnedConnection(http.client.HTTPConnection):
    """A connection to an address that was checked, whatever its name leads to by now."""

    def __init__(
        self, host: str, address: tuple[str, int], timeout: float, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(host, address[1], timeout=timeout)
        self._address = address
        self._context = tls
        self.ended = threading.Event()

    @override
    def connect(self) -> None:
        # Known before the handshake: that must end in time, too.
        self.sock = socket.create_connection(self._address, self.timeout)
        if self._context is not None:
            self.sock = self._context.wrap_socket(self.sock, server_hostname=self.host)
        if self.ended.is_set():
            # The end came while there was nothing to cut.
            raise TimeoutError

    def end(self) -> None:
        """Cut the connection, from another thread: reads and writes under way end."""
        self.ended.set()
        with contextlib.suppress(OSError):
            if self.sock is not None:
                # By its number: a TLS socket would try to take leave, and wait.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def _read_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    return found


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_global and not address.is_multicast


def _port(scheme: str) -> int:
    return http.client.HTTPS_PORT if scheme == "https" else http.client.HTTP_PORT
