"""What event detection is asked to forget of people who are erased.

    erasure ──▶ asked ──▶ who detects: engine, snapshot, journal ──▶ settled, with how much

Rules that hold here:
- Only who detects can forget: its memory has what the store's snapshot has, and more. Where no
  gateway detects, what is stored waits for one, unless nothing is defined any more that it could
  be for.
- A person's name stands here until it is settled, as names of subjects stand in the situations,
  and no longer.
- A person who is in a situation now is forgotten when that has ended: what ends it may follow
  from what is remembered.
- To be asked twice is to be asked once.
- A name is written as JSON: it may have signs that no column takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Index, String, Table, Text

from penstock.clock import utc_now
from penstock.store.database import Database
from penstock.store.detection.journal import read_leader, snapshots_table, steps_table
from penstock.store.detection.tables import AREA
from penstock.store.schema import Moment, metadata

ID_LENGTH: Final = 32
MOST: Final = 500
"""How many people are forgotten at once."""

erasures_table = Table(
    "detection_erasures",
    metadata,
    Column("request", String(ID_LENGTH), primary_key=True),
    Column("person", Text, nullable=False),
    Column("attributes", Text, nullable=False),
    Column("at", Moment, nullable=False),
    Column("settled", Moment),
    Column("forgotten", BigInteger, nullable=False),
    Index("ix_detection_erasures_settled", "settled"),
)


class PersonToForget(NamedTuple):
    """Whose events are to be forgotten, for which request."""

    request: str
    person: str
    attributes: tuple[str, ...]
    """Attributes of events that name people."""


class ForgettingState(NamedTuple):
    """How far detection is with a request."""

    asked: datetime
    is_settled: bool
    forgotten: int
    """How many groups and rows of patterns it kept of the person."""


class DetectionErasures:
    """What detection is asked to forget, in a database. Threads may share it."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock

    # --- for who erases ---

    def has_state(self) -> bool:
        """Say whether a gateway detects, or has left something."""
        with self._database.read() as connection:
            leader = read_leader(connection)
            kept = (sa.select(table.c.name).limit(1) for table in (snapshots_table, steps_table))
            alive = leader is not None and leader.is_alive(self._clock())
            return alive or any(connection.execute(it).first() is not None for it in kept)

    def is_led(self) -> bool:
        """Say whether a gateway detects now."""
        with self._database.read() as connection:
            leader = read_leader(connection)
        return leader is not None and leader.is_alive(self._clock())

    def discard_state(self) -> bool:
        """Delete what detection has left, unless a gateway detects: nothing is defined any more."""
        with self._database.write(AREA) as connection:
            leader = read_leader(connection)
            if leader is not None and leader.is_alive(self._clock()):
                return False
            connection.execute(snapshots_table.delete())
            connection.execute(steps_table.delete())
            return True

    def ask(self, request: str, person: str, attributes: Iterable[str]) -> ForgettingState:
        """Ask that a person's events be forgotten; return how far that is."""
        rows = erasures_table.c
        wanted = sa.select(erasures_table).where(rows.request == request)
        with self._database.write(AREA) as connection:
            found = connection.execute(wanted).one_or_none()
            if found is not None:
                return ForgettingState(found.at, found.settled is not None, found.forgotten)
            now = self._clock()
            connection.execute(
                erasures_table.insert().values(
                    request=request, person=json.dumps(person), at=now, settled=None, forgotten=0,
                    attributes=json.dumps(sorted(attributes)),
                )
            )  # fmt: skip
            return ForgettingState(now, is_settled=False, forgotten=0)

    # --- for who detects ---

    def waiting(self) -> list[PersonToForget]:
        """Return who is to be forgotten, those who wait longest first."""
        rows = erasures_table.c
        wanted = sa.select(erasures_table).where(rows.settled.is_(None)).order_by(rows.at)
        with self._database.read() as connection:
            return [
                PersonToForget(
                    row.request, json.loads(row.person), tuple(json.loads(row.attributes))
                )
                for row in connection.execute(wanted.limit(MOST))
            ]

    def settle(self, forgotten: Mapping[str, int]) -> None:
        """Note that people are forgotten durably; nobody needs to know any more who they were."""
        rows, now = erasures_table.c, self._clock()
        with self._database.write(AREA) as connection:
            for request, count in forgotten.items():
                connection.execute(
                    erasures_table.update()
                    .where(rows.request == request, rows.settled.is_(None))
                    .values(settled=now, forgotten=count, person="")
                )
