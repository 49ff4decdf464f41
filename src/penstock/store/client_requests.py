"""What people ask gateways about their clients, and what the gateways answer.

    command line ──▶ request ──▶ every gateway of the store looks, several times a second
         ▲                            │
         └──────── answers ◀──────────┘        both are deleted when they have been read

Rules that hold here:
- A gateway answers each request once, about the clients that are connected to it.
- Requests and answers name clients and users: they are deleted by whoever asked, and whatever is
  older than `KEPT_SECONDS` by the next who asks. A gateway does not answer what is that old.
- How many gateways are to answer follows from those on record (`enforcement_points`). One that
  was killed does not answer: who asks is told how many did.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, String, Table, Text

from penstock.clock import utc_now
from penstock.store.database import Database
from penstock.store.enforcement_points import points_table
from penstock.store.schema import Moment, metadata

KEPT_SECONDS: Final = 60.0
LISTED: Final = 1_000
"""The most clients that one gateway lists; it says how many there are."""
_AREA: Final = "client_requests"
_LOOK_SECONDS: Final = 0.05
_BODY_LIMIT: Final = 4 << 20

Verb = Literal["list", "show", "kick"]

requests_table = Table(
    "client_requests",
    metadata,
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", Moment, nullable=False),
    Column("verb", String(8), nullable=False),
    Column("client", Text, nullable=False),
    sqlite_autoincrement=True,
)
answers_table = Table(
    "client_answers",
    metadata,
    Column("request", BigInteger, primary_key=True, autoincrement=False),
    Column("gateway", String(32), primary_key=True),
    Column("body", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What is asked: of all clients, or of one."""

    number: int
    verb: Verb
    client: str


@dataclass(frozen=True, slots=True)
class ClientAnswers:
    """What the gateways said, and how many of them should have."""

    bodies: list[dict[str, Any]]
    expected: int


class ClientRequests:
    """The requests of one store, for gateways and for those who ask them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- for those who ask ---

    def ask(self, verb: Verb, client: str, seconds: float) -> ClientAnswers:
        """Ask all gateways, and return what they have answered within so many seconds."""
        with self._database.write(_AREA) as connection:
            old = utc_now() - timedelta(seconds=KEPT_SECONDS)
            table = requests_table.c
            gone = sa.select(table.number).where(table.at < old)
            connection.execute(answers_table.delete().where(answers_table.c.request.in_(gone)))
            connection.execute(requests_table.delete().where(table.at < old))
            asked = requests_table.insert().values(at=utc_now(), verb=verb, client=client)
            number = connection.execute(asked.returning(table.number)).scalar_one()
        try:
            return self._wait(number, seconds)
        finally:
            self._forget(number)

    def _wait(self, number: int, seconds: float) -> ClientAnswers:
        deadline = time.monotonic() + seconds
        answered = sa.select(answers_table.c.gateway, answers_table.c.body).where(
            answers_table.c.request == number
        )
        while True:
            with self._database.read() as connection:
                known = set(connection.scalars(sa.select(points_table.c.holder)))
                found = {row.gateway: row.body for row in connection.execute(answered)}
            if known <= found.keys() or time.monotonic() > deadline:
                bodies = [json.loads(it) for it in found.values()]
                return ClientAnswers(bodies, len(known | found.keys()))
            time.sleep(_LOOK_SECONDS)

    def _forget(self, number: int) -> None:
        with self._database.write(_AREA) as connection:
            connection.execute(answers_table.delete().where(answers_table.c.request == number))
            connection.execute(requests_table.delete().where(requests_table.c.number == number))

    # --- for gateways ---

    def newest(self) -> int:
        """Return the number of the newest request: those before it were for others."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(sa.func.max(requests_table.c.number))) or 0

    def after(self, number: int) -> list[ClientRequest]:
        """Return the requests after one, but none that nobody waits for any more."""
        table = requests_table.c
        wanted = sa.select(table.number, table.verb, table.client).where(
            table.number > number, table.at >= utc_now() - timedelta(seconds=KEPT_SECONDS)
        )
        with self._database.read() as connection:
            rows = connection.execute(wanted.order_by(table.number)).all()
        return [ClientRequest(row.number, row.verb, row.client) for row in rows]

    def answer(self, request: ClientRequest, gateway: str, body: dict[str, Any]) -> None:
        """Answer a request, unless who asked has gone."""
        text = json.dumps(body)
        if len(text) > _BODY_LIMIT:
            text = json.dumps({"gateway": body.get("gateway"), "clients": [], "too_long": True})
        asked = sa.select(requests_table.c.number).where(requests_table.c.number == request.number)
        with self._database.write(_AREA) as connection:
            if connection.scalar(asked) is not None:
                connection.execute(
                    answers_table.insert().values(
                        request=request.number, gateway=gateway, body=text
                    )
                )
