"""The SDK for services: every request is honoured exactly once, in the service's own transaction.

    call ─▶ verify ─▶ handle ─┬─ one transaction: inbox row + effect ─▶ commit ─▶ complete
                              └─ in the inbox already: no effect ─────────────▶ complete

Rules that hold here:
- What is not signed with the service's key, or too old, is refused before it is looked at.
- The row in the inbox and the effect are committed together: killed before, the service is told
  again and begins anew; killed after, it is told again and only says that it is done.
- A choice is not in the notification: the latest state is fetched, and applied only if no later
  one was. So the last choice wins, in whatever order notifications come.
- The inbox says of a person no more than a keyed hash.
"""

from __future__ import annotations

import hmac
import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.client.privacy.transport import ForgedError, State, Transport, read_states
from penstock.errors import UsageError

SIGNATURE: Final = "Penstock-Signature"
OLDEST_SECONDS: Final = 300
_MOMENT_DIGITS: Final = 12
_INBOX: Final = """
CREATE TABLE IF NOT EXISTS penstock_inbox (
    subscriber VARCHAR(256) NOT NULL,
    request VARCHAR(32) NOT NULL,
    PRIMARY KEY (subscriber, request))
"""
_CHOICES: Final = """
CREATE TABLE IF NOT EXISTS penstock_choices (
    subscriber VARCHAR(256) NOT NULL,
    person VARCHAR(64) NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (subscriber, person))
"""
_ENTER: Final = "INSERT INTO penstock_inbox VALUES (?, ?) ON CONFLICT DO NOTHING"
_ADVANCE: Final = (
    "INSERT INTO penstock_choices VALUES (?, ?, ?) ON CONFLICT (subscriber, person) "
    "DO UPDATE SET version = excluded.version "
    "WHERE penstock_choices.version < excluded.version"
)


class DbConnection(Protocol):
    """What is asked of the service's connection: that of the DB-API (PEP 249)."""

    def cursor(self) -> Any:
        """Return a cursor."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Undo the transaction."""


@dataclass(frozen=True, slots=True)
class Notification:
    """What a service is told of a request."""

    request: str
    subscriber: str
    control: str
    action: str
    """delete, export, other; `changed` for a choice."""
    subject: str
    categories: tuple[str, ...]


Effect = Callable[[Any, Notification, tuple[State, ...]], object]
"""What the service does, on its connection; with the latest states where it is a choice."""


class PrivacySubscriber:
    """Honours requests for one service. Threads may share it, each with its own connection."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        key: bytes | str,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self._transport = transport
        self._key = bytes.fromhex(key.strip()) if isinstance(key, str) else key
        self._clock = clock

    # --- in ---

    def verify(
        self, signature: str | None, body: bytes, *, oldest: float | None = OLDEST_SECONDS
    ) -> Notification:
        """Return what the service is told; raise `ForgedError` where it is not from Penstock.

        `signature` is the header `Penstock-Signature`. What waited in a queue may be old: say
        `oldest=None` there, as the inbox finds what is repeated.
        """
        moment = _read_moment(signature or "")
        expected = hmac.digest(self._key, b"%d." % moment + body, "sha256").hex()
        given = (signature or "").encode("utf-8", "replace")
        if not hmac.compare_digest(f"t={moment},v1={expected}".encode(), given):
            raise ForgedError("the notification is not signed by Penstock", fix="answer 403")
        if oldest is not None and abs(self._clock() - moment) > oldest:
            raise ForgedError("the notification is too old", fix="check the clock; answer 403")
        found = json.loads(body)
        if found["subscriber"] != self.name:
            raise ForgedError("the notification is for another service", fix="answer 403")
        return Notification(
            found["request"],
            found["subscriber"],
            found["control"],
            found["action"],
            found["subject"],
            tuple(found["categories"]),
        )

    # --- the inbox ---

    @staticmethod
    def create_tables(connection: DbConnection) -> None:
        """Make the tables of the inbox in the service's database, where they are missing."""
        cursor = connection.cursor()
        for table in (_INBOX, _CHOICES):
            cursor.execute(table)
        connection.commit()

    def handle(self, connection: DbConnection, notification: Notification, effect: Effect) -> bool:
        """Have an effect exactly once, commit it, and say that it is done; tell whether it was had.

        Whatever goes wrong is raised, after the transaction was undone: answer 500, and the
        service is told again.
        """
        _require_transactions(connection)
        self.acknowledge(notification.request)
        states: tuple[State, ...] = ()
        if notification.action == "changed":
            states = self.states(notification.subject)
        try:
            had = self._enter(connection, notification, states)
            if had:
                effect(connection, notification, states)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
        self.complete(notification.request)
        return had

    def _enter(
        self, connection: DbConnection, notification: Notification, states: tuple[State, ...]
    ) -> bool:
        """Note a request in the inbox; tell whether it is new, and no later choice was applied."""
        cursor = connection.cursor()
        mark = _mark_of(connection)
        cursor.execute(_ENTER.replace("?", mark), (self.name, notification.request))
        if cursor.rowcount != 1:
            return False
        if notification.action != "changed":
            return True
        person = hmac.digest(self._key, notification.subject.encode(), "sha256").hex()
        version = max((it.version for it in states), default=0)
        cursor.execute(_ADVANCE.replace("?", mark), (self.name, person, version))
        return bool(cursor.rowcount == 1)

    # --- answers and questions ---

    def acknowledge(self, request: str) -> str:
        """Say that the service knows of a request; return its status."""
        return self._answer("acknowledge", request)

    def complete(self, request: str) -> str:
        """Say that the service has done its part; return its status."""
        return self._answer("complete", request)

    def states(self, subject: str) -> tuple[State, ...]:
        """Return the latest states of a person, of the control that the service acts on."""
        content = {"subscriber": self.name, "subject": subject}
        return read_states(self._transport.call("states", content).get("states", []))

    def close(self) -> None:
        """Let go of connections."""
        self._transport.close()

    def _answer(self, what: str, request: str) -> str:
        content = {"request": request, "subscriber": self.name}
        return str(self._transport.call(what, content)["status"])


def _read_moment(signature: str) -> int:
    moment = signature.partition(",")[0].removeprefix("t=")
    digits = moment.isascii() and moment.isdigit() and len(moment) <= _MOMENT_DIGITS
    return int(moment) if digits else 0


def _mark_of(connection: DbConnection) -> str:
    """Return how the service's driver marks a parameter."""
    driver = importlib.import_module(_driver_of(connection))
    style = getattr(driver, "paramstyle", "")
    if style == "qmark":
        return "?"
    if style in {"format", "pyformat"}:
        return "%s"
    raise UsageError(
        f"the driver {driver.__name__!r} is not known here", fix="use sqlite3 or psycopg"
    )


def _require_transactions(connection: DbConnection) -> None:
    """Refuse a connection that commits every statement by itself: once would become twice."""
    alone = getattr(connection, "autocommit", False) is True
    if _driver_of(connection) == "sqlite3":
        alone = alone or getattr(connection, "isolation_level", "") is None
    if alone:
        raise UsageError(
            "the connection commits every statement by itself", fix="turn autocommit off"
        )


def _driver_of(connection: DbConnection) -> str:
    return type(connection).__module__.partition(".")[0]
