"""A connection to one broker: login, and the admin requests on SCRAM users and ACLs.

librdkafka takes a password to change a user's credential; we keep no password, only what
is left of it, salted and iterated, which the protocol takes as it is. Where it is not
allowed to list users librdkafka ends the process, and where it is not allowed to list
ACLs it says that there are none, which would pass for a revocation that is done. So this
module logs in by itself and makes the requests on users and ACLs, with thousands of them
in one. The login also shows at once, and in plain words, whether a cluster is out of reach
or does not let us in.

Rules that hold here:
- Responses are bounded in size and time, and read strictly.
- Any broker takes a change: it forwards the request to the controller. What it describes is
  its own metadata, and another broker may be ahead or behind for a moment.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import starmap
from typing import Self

from penstock.config.brokers import KafkaSettings
from penstock.errors import UnavailableError, quote
from penstock.eventlog.connection import (
    GREETING_SECONDS,
    fetch_token,
    read_password,
    require_bootstrap,
)
from penstock.kafka.acls import Acl
from penstock.kafka.credentials import Credential, Login, LoginRefusedError
from penstock.kafka.protocol import (
    NO_TAGS,
    ResponseReader,
    read_entry,
    read_resource,
    write_acl,
    write_any,
    write_byte,
    write_bytes,
    write_list,
    write_text,
)

RESPONSE_LIMIT = 64 * 1024 * 1024
MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_CLIENT = b"penstock"
_HANDSHAKE, _AUTHENTICATE = (17, 1), (36, 1)
_DESCRIBE_ACLS, _CREATE_ACLS, _DELETE_ACLS = (29, 2), (30, 2), (31, 2)
_DESCRIBE_SCRAM, _ALTER_SCRAM, _DESCRIBE_CLUSTER = (50, 0), (51, 0), (60, 0)
_API_VERSIONS = (18, 0)
_NEEDED = {
    "DescribeAcls": _DESCRIBE_ACLS,
    "CreateAcls": _CREATE_ACLS,
    "DeleteAcls": _DELETE_ACLS,
    "DescribeUserScramCredentials": _DESCRIBE_SCRAM,
    "AlterUserScramCredentials": _ALTER_SCRAM,
    "DescribeCluster": _DESCRIBE_CLUSTER,
}
_NOT_FOUND = 91
_LENGTH = struct.Struct(">i")
_CODES = {
    29: "its super users do not include Penstock's",
    31: "it does not allow that to Penstock's user",
    33: "it does not know that way to log in",
    41: "it has no controller at the moment",
    58: "user or password is wrong",
    7: "it took too long",
}


class _SilentError(UnavailableError):
    """A broker that does not answer, or breaks off."""

    def __init__(self, address: str, error: OSError) -> None:
        silent = isinstance(error, TimeoutError)
        self.cause = "does not answer" if silent else f"broke off: {error.strerror or error}"
        super().__init__(
            f"Kafka at {address} {self.cause}",
            fix="check kafka.security, and the broker's log",
        )


class AdminConnection(ExitStack):
    """A connection to one broker, logged in; use it as a context manager."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        super().__init__()
        self._socket = connection
        self.callback(connection.close)
        self._address = address
        self._number = 0

    @classmethod
    def open(
        cls,
        settings: KafkaSettings,
        user: str | None = None,
        password: str | None = None,
        *,
        address: str | None = None,
    ) -> Self:
        """Log in at the first broker that can be reached; as Penstock where no password is given.

        `address` asks for one broker. Raise `UnavailableError` where there is none,
        `LoginRefusedError` where it says no. A broker that is silent is passed over soon: it is
        after the login that it may take its time.
        """
        troubles = []
        how = settings if password is None else settings.for_users()
        places = [address] if address else require_bootstrap(how).split(",")
        limit = min(settings.timeout, GREETING_SECONDS / len(places))
        for place in places:
            try:
                connection = _connect(how, place, limit)
            except OSError as error:
                troubles.append(f"{place}: {error.strerror or error}")
                continue
            broker = cls(connection, place)
            try:
                broker._login(how, user or how.user, password)
            except _SilentError as error:
                broker.close()
                troubles.append(f"{place} {error.cause}")
                continue
            except BaseException:
                broker.close()
                raise
            connection.settimeout(settings.timeout)
            return broker
        raise UnavailableError(
            f"Kafka cannot be reached ({'; '.join(troubles)})",
            fix="check kafka.bootstrap and kafka.security, and that the brokers run",
        )

    def users(self) -> set[str]:
        """Return the users that have a credential."""
        # An empty list asks for all. So does none, but brokers fail at that without an answer
        # where they ought to refuse it.
        response = self._ask_flexible(_DESCRIBE_SCRAM, write_list([]))
        self._allow(response, "did not list its users")
        found = set()
        for _ in range(response.count()):
            found.add(response.text())
            response.short()
            response.text()
            for _ in range(response.count()):
                response.take(5)  # a mechanism and its iterations
                response.skip_tags()
            response.skip_tags()
        return found

    def identity(self) -> str:
        """Return the id of this cluster."""
        return self._describe().text()

    def find_missing_requests(self) -> list[str]:
        """Return which requests of ours the broker does not know, because it is older."""
        response = self._ask(_API_VERSIONS, b"")
        response.short()
        known = {}
        for _ in range(response.long()):
            key, least, most = response.short(), response.short(), response.short()
            known[key] = range(least, most + 1)
        return [
            name for name, (key, version) in _NEEDED.items() if version not in known.get(key, ())
        ]

    def brokers(self) -> list[str]:
        """Return the addresses of the brokers that run, as the controllers know them."""
        response = self._describe()
        response.text()
        response.long()  # who the controller is
        found = []
        for _ in range(response.count()):
            response.long()
            host, port = response.text(), response.long()
            found.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            response.text()  # the rack
            response.skip_tags()
        return found

    def acls(self, principal: str | None = None) -> Iterator[tuple[str, Acl]]:
        """Yield all ACLs with their principals, or those of one principal."""
        response = self._ask_flexible(_DESCRIBE_ACLS, write_any(principal))
        self._allow(response, "did not list its ACLs")
        for _ in range(response.count()):
            about = read_resource(response)
            for _ in range(response.count()):
                yield read_entry(response, about)
            response.skip_tags()

    def create_acls(self, acls: Iterable[tuple[str, Acl]]) -> None:
        """Create ACLs of principals; idempotent."""
        body = write_list(starmap(write_acl, acls))
        response = self._ask_flexible(_CREATE_ACLS, body)
        for _ in range(response.count()):
            self._allow(response, "did not take an ACL")
            response.skip_tags()

    def delete_acls(self, acls: Iterable[tuple[str | None, Acl]]) -> int:
        """Delete ACLs of principals, None being anyone; return how many went."""
        body = write_list(starmap(write_acl, acls))
        response = self._ask_flexible(_DELETE_ACLS, body)
        removed = 0
        for _ in range(response.count()):
            self._allow(response, "did not remove an ACL")
            for _ in range(response.count()):
                self._allow(response, "did not remove an ACL")
                read_entry(response, read_resource(response))
                removed += 1
            response.skip_tags()
        return removed

    def alter_credentials(
        self,
        put: Sequence[tuple[str, Credential]] = (),
        delete: Iterable[tuple[str, str]] = (),
    ) -> dict[str, str]:
        """Put users' credentials, and delete those of (user, mechanism).

        Return what went wrong, by user; to delete what is not there is no trouble.
        """
        gone = (write_text(user) + write_byte(MECHANISMS[how]) + NO_TAGS for user, how in delete)
        new = (
            write_text(user)
            + write_byte(MECHANISMS[found.mechanism])
            + struct.pack(">i", found.iterations)
            + write_bytes(found.salt)
            + write_bytes(found.salted)
            + NO_TAGS
            for user, found in put
        )
        response = self._ask_flexible(_ALTER_SCRAM, write_list(gone) + write_list(new))
        wrong = {}
        for _ in range(response.count()):
            user, code, message = response.text(), response.short(), response.text()
            response.skip_tags()
            if code not in {0, _NOT_FOUND}:
                wrong[user] = _CODES.get(code) or message or f"error {code}"
        return wrong

    def _describe(self) -> ResponseReader:
        response = self._ask_flexible(_DESCRIBE_CLUSTER, write_byte(0))
        self._allow(response, "did not describe itself")
        return response

    def _login(self, how: KafkaSettings, user: str, password: str | None) -> None:
        if how.security == "ssl":
            # A broker that does not take the certificate breaks off at the first question.
            self._ask(_API_VERSIONS, b"")
            return
        named = how.mechanism.encode()
        response = self._ask(_HANDSHAKE, struct.pack(">h", len(named)) + named)
        self._refuse(response.short(), user)
        if how.mechanism == "OAUTHBEARER":
            bearer = f"n,,\x01auth=Bearer {fetch_token(how.token)}\x01\x01"
            # RFC 7628: what is wrong comes as an answer, and fails with the next message.
            if self._authenticate(bearer.encode(), user):
                self._authenticate(b"\x01", user)
            return
        secret = read_password(how) if password is None else password
        if how.mechanism == "PLAIN":
            self._authenticate(f"\0{user}\0{secret}".encode(), user)
            return
        login = Login(how.mechanism, user, secret)
        first = self._authenticate(login.first(), user)
        login.check(self._authenticate(login.final(first), user))

    def _authenticate(self, message: bytes, user: str) -> bytes:
        response = self._ask(_AUTHENTICATE, struct.pack(">i", len(message)) + message)
        code = response.short()
        length = response.short()
        response.take(max(0, length))
        self._refuse(code, user)
        return response.take(max(0, response.long()))

    def _refuse(self, code: int, user: str) -> None:
        if code:
            raise LoginRefusedError(
                f"Kafka at {self._address} does not let {quote(user)} in: "
                f"{_CODES.get(code, f'error {code}')}",
                fix="check how kafka logs in: mechanism, user, password, token",
            )

    def _allow(self, response: ResponseReader, what: str) -> None:
        code, message = response.short(), response.text()
        if code:
            raise UnavailableError(
                f"Kafka at {self._address} {what}: "
                f"{_CODES.get(code) or message or f'error {code}'}",
                fix="check that kafka.user is one of its super users",
            )

    def _ask_flexible(self, what: tuple[int, int], body: bytes) -> ResponseReader:
        response = self._ask(what, body + NO_TAGS, flexible=True)
        response.long()  # how long we were held back
        return response

    def _ask(self, what: tuple[int, int], body: bytes, *, flexible: bool = False) -> ResponseReader:
        self._number += 1
        header = struct.pack(">hhih", *what, self._number, len(_CLIENT)) + _CLIENT
        message = header + (NO_TAGS if flexible else b"") + body
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
            size = _LENGTH.unpack(self._receive(_LENGTH.size))[0]
            if not _LENGTH.size <= size <= RESPONSE_LIMIT:
                raise self._nonsense()
            response = ResponseReader(self._receive(size))
        except OSError as error:
            raise _SilentError(self._address, error) from error
        if response.long() != self._number:
            raise self._nonsense()
        if flexible:
            response.skip_tags()
        return response

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = self._socket.recv(min(size - len(found), 1 << 20))
            if not piece:
                raise ConnectionResetError("the connection was closed")
            found += piece
        return bytes(found)

    def _nonsense(self) -> UnavailableError:
        return UnavailableError(
            f"what answers at {self._address} is not a Kafka broker, or wants TLS",
            fix="check kafka.bootstrap and kafka.security",
        )


def _connect(settings: KafkaSettings, address: str, limit: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    connection = socket.create_connection((bare, int(port)), timeout=limit)
    if settings.security == "sasl_plaintext":
        return connection
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None and settings.certificate_key is not None:
            context.load_cert_chain(
                settings.certificate, settings.certificate_key.path, _refuse_encrypted
            )
        return context.wrap_socket(connection, server_hostname=bare)
    except OSError:
        connection.close()
        raise


def _refuse_encrypted() -> str:
    """Stand where OpenSSL would ask the terminal."""
    raise UnavailableError(
        "the key of our own certificate for Kafka is encrypted",
        fix="store it unencrypted, in a file of mode 0600",
    )
