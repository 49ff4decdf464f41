"""A service that honours one notification with the SDK, and kills itself where it is told to.

    honour.py URL TOKEN KEY DATABASE SIGNATURE BODY POINT

POINT is before-commit, after-commit, after-complete, or never. DATABASE is a file of SQLite, or a
URL of PostgreSQL.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any

import psycopg

from penstock.client.privacy import Notification, PrivacySubscriber, RestTransport, State


def connect(place: str) -> Any:
    if place.startswith("postgresql"):
        return psycopg.connect(place.replace("postgresql+psycopg", "postgresql"))
    return sqlite3.connect(place)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingConnection:
    """A connection whose process ends right before or right after a commit."""

    def __init__(self, connection: Any, point: str) -> None:
        self.real, self._point = connection, point
        self.cursor, self.rollback = connection.cursor, connection.rollback
        self.autocommit = False

    def commit(self) -> None:
        if self._point == "before-commit":
            die()
        self.real.commit()
        if self._point == "after-commit":
            die()


def main(url: str, token: str, key: str, place: str, *rest: str) -> None:
    signature, body, point = rest
    subscriber = PrivacySubscriber(RestTransport(url, token), "crm", key)
    connection = connect(place)
    PrivacySubscriber.create_tables(connection)
    connection.cursor().execute("CREATE TABLE IF NOT EXISTS effects (request VARCHAR(40))")
    connection.commit()
    # The type of the real connection tells the driver.
    dying = type("Dying", (DyingConnection,), {"__module__": type(connection).__module__})

    def effect(used: Any, told: Notification, states: tuple[State, ...]) -> None:
        del states
        statement = "INSERT INTO effects VALUES (?)"
        if place.startswith("postgresql"):
            statement = "INSERT INTO effects VALUES (%s)"
        used.cursor().execute(statement, (told.request,))

    notification = subscriber.verify(signature, body.encode())
    had = subscriber.handle(dying(connection, point), notification, effect)
    if point == "after-complete":
        die()
    sys.stdout.write(str(had))


if __name__ == "__main__":
    main(*sys.argv[1:])
