"""Enforcement points: the gateways that must know a prohibition, and what they are asked.

    gateway   register ──▶ look at all opt-outs ──▶ take them over ──▶ confirm ──▶ lease
    whoever   commit ──▶ wait: every point has confirmed this epoch, or has no lease any more
    answers

    command line ──▶ request ──▶ every gateway of the store looks, several times a second
         ▲                            │
         └──────── answers ◀──────────┘        both are deleted when they have been read

Rules that hold here:
- A point holds a lease only from a look that came after it was registered and that it has
  confirmed. So a point that has not confirmed an epoch a lease after the commit has none: it
  delivers nothing, and is taken off the list. It registers again before its next look counts.
- Waiting ends after the longest lease of those who are behind at the latest. No clocks of
  two machines are compared: who waits measures from the end of its own commit.
- A gateway that ends in order takes itself off. One that was killed costs the next who opts out
  one lease.
- A gateway answers each request once, about the clients that are connected to it.
- Requests and answers name clients and users: they are deleted by whoever asked, and whatever is
  older than `KEPT_SECONDS` by the next who asks. A gateway does not answer what is that old.
- How many gateways are to answer follows from those on record. One that
  was killed does not answer: who asks is told how many did.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, Integer, String, Table, Text

from penstock.clock import boot_clock, utc_now
from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.schema import Moment, metadata

AREA: Final = "points"
HOLDER_LENGTH: Final = 32
_MICROSECONDS: Final = 1_000_000
_MARGIN: Final = 1.05
"""How much longer than a lease it is waited: two clocks may not run quite alike."""
_FIRST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.02

points_table = Table(
    "enforcement_points",
    metadata,
    Column("holder", String(HOLDER_LENGTH), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("lease", BigInteger, nullable=False),  # microseconds
)
_OWN: Final = sa.select(points_table.c.epoch).where(points_table.c.holder == sa.bindparam("asked"))
_BEHIND: Final = sa.select(points_table.c.holder, points_table.c.lease).where(
    points_table.c.epoch < sa.bindparam("asked")
)
_CONFIRM: Final = (
    points_table.update()
    .where(points_table.c.holder == sa.bindparam("by"))
    .values(epoch=sa.bindparam("known"))
)


class EnforcementPoints:
    """The points on record, for those who are one and those who wait for them."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = boot_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._database = database
        self._clock = clock
        self._sleep = sleep

    # --- for a point ---

    def register(self, holder: str, lease: float) -> None:
        """Put a point on the list: whoever commits from now on waits for it."""
        row = {"holder": holder, "epoch": 0, "lease": int(lease * _MICROSECONDS)}
        with self._database.write(AREA) as connection:
            connection.execute(points_table.delete().where(points_table.c.holder == holder))
            connection.execute(points_table.insert().values(row))

    @staticmethod
    def is_registered(connection: Connection, holder: str) -> bool:
        """Say whether a point is still on the list."""
        return connection.scalar(_OWN, {"asked": holder}) is not None

    def confirm(self, holder: str, epoch: int) -> bool:
        """Note that a point keeps to an epoch; False where it is not on the list any more."""
        with self._database.write(AREA) as connection:
            done = connection.execute(_CONFIRM, {"by": holder, "known": epoch})
            return done.rowcount == 1

    def withdraw(self, holder: str) -> None:
        """Take a point off the list that delivers nothing any more."""
        with self._database.write(AREA) as connection:
            connection.execute(points_table.delete().where(points_table.c.holder == holder))

    # --- for whoever answers ---

    def wait(self, epoch: int) -> None:
        """Return when every point keeps to an epoch that was committed before, or has no lease."""
        started = self._clock()
        longest: float | None = None
        pause = _FIRST_PAUSE
        while True:
            waited = self._clock() - started
            try:
                with self._database.read() as connection:
                    behind = connection.execute(_BEHIND, {"asked": epoch}).all()
                leases = {row.holder: row.lease / _MICROSECONDS * _MARGIN for row in behind}
                if not leases:
                    return
                longest = max(leases.values())
                lost = [holder for holder, lease in leases.items() if waited > lease]
                if lost:
                    self._drop(lost, epoch)
                    continue
            except UnavailableError:
                # What the store does not tell any more, time does.
                if longest is None:
                    raise
                if waited > longest:
                    return
            self._sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _drop(self, holders: list[str], epoch: int) -> None:
        """Take points off the list that have had no lease since they missed an epoch."""
        table = points_table.c
        with self._database.write(AREA) as connection:
            connection.execute(
                points_table.delete().where(table.holder.in_(holders), table.epoch < epoch)
            )


KEPT_SECONDS: Final = 60.0
LISTED: Final = 1_000
"""The most clients that one gateway lists; it says how many there are."""
_AREA: Final = "client_requests"
_LOOK_SECONDS: Final = 0.05
_BODY_LIMIT: Final = 4 << 20

Verb = Literal["list", "held", "show", "kick", "recent"]


class RecentDecision(NamedTuple):
    """Something that a gateway decided lately, without what the message said."""

    at: float
    action: Literal["read", "write"]
    user: str | None
    client: str | None
    topic: str
    purposes: Sequence[str | None] = ()
    """Of the subscriptions that it came by."""
    publisher: str | None = None
    publishing_client: str | None = None
    behalf: str | None = None
    aip: Sequence[str] | None = None
    """The purposes that the message carries for itself; None: it carries none."""
    pip: Sequence[str] | None = None
    allowed: bool = True
    why: str = ""
    rule: str = ""


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

    def recent(self, seconds: float) -> tuple[list[RecentDecision], int]:
        """Return what gateways decided lately, the newest first, and how many did not answer."""
        found = self.ask("recent", "", seconds)
        decisions = [
            RecentDecision(**it) for body in found.bodies for it in body.get("decisions", ())
        ]
        decisions.sort(key=lambda it: -it.at)
        return decisions, found.expected - len(found.bodies)

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
            kept: dict[str, Any] = {"gateway": body.get("gateway"), "clients": [], "decisions": []}
            text = json.dumps({**kept, "too_long": True})
        asked = sa.select(requests_table.c.number).where(requests_table.c.number == request.number)
        with self._database.write(_AREA) as connection:
            if connection.scalar(asked) is not None:
                connection.execute(
                    answers_table.insert().values(
                        request=request.number, gateway=gateway, body=text
                    )
                )
