"""The few requests of Kafka's protocol that librdkafka cannot make as we need them.

librdkafka takes a password to change a user's credential; we keep no password, only what
is left of it, salted and iterated, which the protocol takes as it is. So this module logs
in by itself and sends that one request. The login also tells at once, and in plain words,
whether a cluster is out of reach or does not let us in.

Rules that hold here:
- Answers are bounded in size and time, and read strictly.
- Any broker will do: it hands the request to the controller.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from penstock.config.sections.kafka import KafkaSettings
from penstock.errors import UnavailableError, quote
from penstock.kafka.connection import read_password, require_bootstrap
from penstock.kafka.scram import Credential, Login, RefusedError

ANSWER_LIMIT = 64 * 1024 * 1024
MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_CLIENT = b"penstock"
_HANDSHAKE, _AUTHENTICATE, _ALTER_SCRAM = (17, 1), (36, 1), (51, 0)
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


class Wire:
    """A connection to one broker, logged in; use it as a context manager."""

    def __init__(self, connection: socket.socket, address: str) -> None:
        self._socket = connection
        self._address = address
        self._number = 0

    @classmethod
    def open(
        cls, settings: KafkaSettings, user: str | None = None, password: str | None = None
    ) -> Self:
        """Log in at the first broker that can be reached; as Penstock's own user if none is named.

        Raise `UnavailableError` where there is none, `RefusedError` where it says no.
        """
        troubles = []
        for address in require_bootstrap(settings).split(","):
            try:
                connection = _connect(settings, address)
            except OSError as error:
                troubles.append(f"{address}: {error.strerror or error}")
                continue
            wire = cls(connection, address)
            try:
                wire._login(
                    settings.mechanism,
                    user or settings.user,
                    read_password(settings) if password is None else password,
                )
            except BaseException:
                wire.close()
                raise
            return wire
        raise UnavailableError(
            f"Kafka cannot be reached ({'; '.join(troubles)})",
            fix="check kafka.bootstrap and kafka.security, and that the brokers run",
        )

    def alter_credentials(
        self,
        put: Sequence[tuple[str, Credential]] = (),
        delete: Iterable[tuple[str, str]] = (),
    ) -> dict[str, str]:
        """Put users' credentials, and delete those of (user, mechanism).

        Return what went wrong, by user; to delete what is not there is no trouble.
        """
        body = _array([_text(user) + _byte(MECHANISMS[how]) + b"\0" for user, how in delete])
        body += _array(
            [
                _text(user)
                + _byte(MECHANISMS[found.mechanism])
                + struct.pack(">i", found.iterations)
                + _bytes(found.salt)
                + _bytes(found.salted)
                + b"\0"
                for user, found in put
            ]
        )
        answer = self._ask(_ALTER_SCRAM, body + b"\0", flexible=True)
        answer.take(4)  # how long we were held back
        wrong = {}
        for _ in range(answer.size() - 1):
            user = (answer.take(answer.size() - 1)).decode()
            code = answer.short()
            length = answer.size()
            message = answer.take(length - 1).decode() if length else ""
            answer.skip_tags()
            if code not in {0, _NOT_FOUND}:
                wrong[user] = _CODES.get(code) or message or f"error {code}"
        return wrong

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _login(self, mechanism: str, user: str, password: str) -> None:
        named = mechanism.encode()
        answer = self._ask(_HANDSHAKE, struct.pack(">h", len(named)) + named)
        self._refuse(answer.short(), user)
        login = Login(mechanism, user, password)
        first = self._authenticate(login.first(), user)
        login.check(self._authenticate(login.final(first), user))

    def _authenticate(self, message: bytes, user: str) -> bytes:
        answer = self._ask(_AUTHENTICATE, struct.pack(">i", len(message)) + message)
        code = answer.short()
        length = answer.short()
        answer.take(max(0, length))
        self._refuse(code, user)
        return answer.take(max(0, answer.long()))

    def _refuse(self, code: int, user: str) -> None:
        if code:
            raise RefusedError(
                f"Kafka at {self._address} does not let {quote(user)} in: "
                f"{_CODES.get(code, f'error {code}')}",
                fix="check kafka.user, kafka.password and kafka.mechanism",
            )

    def _ask(self, what: tuple[int, int], body: bytes, *, flexible: bool = False) -> _Answer:
        self._number += 1
        header = struct.pack(">hhih", *what, self._number, len(_CLIENT)) + _CLIENT
        message = header + (b"\0" if flexible else b"") + body
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
            size = _LENGTH.unpack(self._receive(_LENGTH.size))[0]
            if not _LENGTH.size <= size <= ANSWER_LIMIT:
                raise self._nonsense()
            answer = _Answer(self._receive(size))
        except OSError as error:
            raise UnavailableError(
                f"Kafka at {self._address} broke off: {error.strerror or error}",
                fix="check kafka.security, and the broker's log",
            ) from error
        if answer.long() != self._number:
            raise self._nonsense()
        if flexible:
            answer.skip_tags()
        return answer

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
            f"what answers at {self._address} is no Kafka broker, or wants TLS",
            fix="check kafka.bootstrap and kafka.security",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Answer:
    """Reads an answer from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) != size:
            raise UnavailableError(
                "Kafka broke off in the middle of an answer", fix="see the broker's log"
            )
        self._at += size
        return found

    def short(self) -> int:
        return int(struct.unpack(">h", self.take(2))[0])

    def long(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def size(self) -> int:
        """Read the length of what follows, plus one; 0 means that there is nothing."""
        found = shift = 0
        while True:
            (byte,) = self.take(1)
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # noqa: PLR2004 - the last byte has no high bit
                return found

    def skip_tags(self) -> None:
        for _ in range(self.size()):
            self.size()
            self.take(self.size())


def _connect(settings: KafkaSettings, address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    connection = socket.create_connection((bare, int(port)), timeout=settings.timeout)
    if settings.security != "sasl_ssl":
        return connection
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        return context.wrap_socket(connection, server_hostname=bare)
    except OSError:
        connection.close()
        raise


def _array(items: list[bytes]) -> bytes:
    return _varint(len(items) + 1) + b"".join(items)


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(data: bytes) -> bytes:
    return _varint(len(data) + 1) + data


def _byte(value: int) -> bytes:
    return struct.pack(">b", value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
