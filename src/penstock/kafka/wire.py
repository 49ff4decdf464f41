"""The requests of Kafka's protocol on users and rules, made as we need them.

librdkafka takes a password to change a user's credential; we keep no password, only what
is left of it, salted and iterated, which the protocol takes as it is. Where it is not
allowed to list users librdkafka ends the process, and where it is not allowed to list
rules it says that there are none, which would pass for a revocation that is done. So this
module logs in by itself and makes the requests on users and rules, with thousands of them
in one. The login also tells at once, and in plain words, whether a cluster is out of reach
or does not let us in.

Rules that hold here:
- Answers are bounded in size and time, and read strictly.
- Any broker will do to change something: it hands the request to the controller. What it
  tells is what it knows itself, and another may know more or less for a moment.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from penstock.config.sections.kafka import KafkaSettings
from penstock.errors import UnavailableError, quote
from penstock.eventlog.connection import read_password, require_bootstrap
from penstock.kafka.frames import (
    NO_TAGS,
    Answer,
    write_byte,
    write_bytes,
    write_list,
    write_text,
)
from penstock.kafka.rule_frames import (
    read_entry,
    read_resource,
    write_any,
    write_rule,
)
from penstock.kafka.rules import Rule
from penstock.kafka.scram import Credential, Login, RefusedError

ANSWER_LIMIT = 64 * 1024 * 1024
MECHANISMS = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_CLIENT = b"penstock"
_HANDSHAKE, _AUTHENTICATE = (17, 1), (36, 1)
_DESCRIBE_RULES, _CREATE_RULES, _DELETE_RULES = (29, 2), (30, 2), (31, 2)
_DESCRIBE_SCRAM, _ALTER_SCRAM, _DESCRIBE_CLUSTER = (50, 0), (51, 0), (60, 0)
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
        cls,
        settings: KafkaSettings,
        user: str | None = None,
        password: str | None = None,
        *,
        address: str | None = None,
    ) -> Self:
        """Log in at the first broker that can be reached; as Penstock's own user if none is named.

        `address` asks for one broker. Raise `UnavailableError` where there is none,
        `RefusedError` where it says no.
        """
        troubles = []
        for place in [address] if address else require_bootstrap(settings).split(","):
            try:
                connection = _connect(settings, place)
            except OSError as error:
                troubles.append(f"{place}: {error.strerror or error}")
                continue
            wire = cls(connection, place)
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

    def users(self) -> set[str]:
        """Return the users that have a credential."""
        # An empty list asks for all. So does none, but brokers fail at that without an answer
        # where they ought to refuse it.
        answer = self._ask_flexible(_DESCRIBE_SCRAM, write_list([]))
        self._allow(answer, "did not tell its users")
        found = set()
        for _ in range(answer.count()):
            found.add(answer.text())
            answer.short()
            answer.text()
            for _ in range(answer.count()):
                answer.take(5)  # a mechanism and its iterations
                answer.skip_tags()
            answer.skip_tags()
        return found

    def identity(self) -> str:
        """Return what tells this cluster from any other."""
        return self._describe().text()

    def brokers(self) -> list[str]:
        """Return the addresses of the brokers that run, as the controllers know them."""
        answer = self._describe()
        answer.text()
        answer.long()  # who the controller is
        found = []
        for _ in range(answer.count()):
            answer.long()
            host, port = answer.text(), answer.long()
            found.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            answer.text()  # the rack
            answer.skip_tags()
        return found

    def rules(self, principal: str | None = None) -> Iterator[tuple[str, Rule]]:
        """Yield all rules with their principals, or those of one principal."""
        answer = self._ask_flexible(_DESCRIBE_RULES, write_any(principal))
        self._allow(answer, "did not tell its rules")
        for _ in range(answer.count()):
            about = read_resource(answer)
            for _ in range(answer.count()):
                yield read_entry(answer, about)
            answer.skip_tags()

    def put_rules(self, rules: Iterable[tuple[str, Rule]]) -> None:
        """Put rules of principals; those that are there already are no trouble."""
        body = write_list(write_rule(principal, rule) for principal, rule in rules)
        answer = self._ask_flexible(_CREATE_RULES, body)
        for _ in range(answer.count()):
            self._allow(answer, "did not take a rule")
            answer.skip_tags()

    def remove_rules(self, rules: Iterable[tuple[str | None, Rule]]) -> int:
        """Remove rules of principals, None being anyone; return how many went."""
        body = write_list(write_rule(principal, rule) for principal, rule in rules)
        answer = self._ask_flexible(_DELETE_RULES, body)
        removed = 0
        for _ in range(answer.count()):
            self._allow(answer, "did not remove a rule")
            for _ in range(answer.count()):
                self._allow(answer, "did not remove a rule")
                read_entry(answer, read_resource(answer))
                removed += 1
            answer.skip_tags()
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
        answer = self._ask_flexible(_ALTER_SCRAM, write_list(gone) + write_list(new))
        wrong = {}
        for _ in range(answer.count()):
            user, code, message = answer.text(), answer.short(), answer.text()
            answer.skip_tags()
            if code not in {0, _NOT_FOUND}:
                wrong[user] = _CODES.get(code) or message or f"error {code}"
        return wrong

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def _describe(self) -> Answer:
        answer = self._ask_flexible(_DESCRIBE_CLUSTER, write_byte(0))
        self._allow(answer, "did not tell what it is")
        return answer

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

    def _allow(self, answer: Answer, what: str) -> None:
        code, message = answer.short(), answer.text()
        if code:
            raise UnavailableError(
                f"Kafka at {self._address} {what}: "
                f"{_CODES.get(code) or message or f'error {code}'}",
                fix="check that kafka.user is one of its super users",
            )

    def _ask_flexible(self, what: tuple[int, int], body: bytes) -> Answer:
        answer = self._ask(what, body + NO_TAGS, flexible=True)
        answer.long()  # how long we were held back
        return answer

    def _ask(self, what: tuple[int, int], body: bytes, *, flexible: bool = False) -> Answer:
        self._number += 1
        header = struct.pack(">hhih", *what, self._number, len(_CLIENT)) + _CLIENT
        message = header + (NO_TAGS if flexible else b"") + body
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
            size = _LENGTH.unpack(self._receive(_LENGTH.size))[0]
            if not _LENGTH.size <= size <= ANSWER_LIMIT:
                raise self._nonsense()
            answer = Answer(self._receive(size))
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
