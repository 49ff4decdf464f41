"""The tables of the definitions, and the `metadata` every table of the store is on.

Rules that hold here:
- A table is described here for queries and made by a step of `migrations`; a test holds the
  two to each other.
- Other parts add a module with their own tables on this `metadata` and a migration of
  their own. They never change a table that is not theirs.
- History is never rewritten: a revision is inserted once; the only column ever updated
  is `superseded`, once, from nothing to the epoch that replaced the revision.

A revision is valid from its `epoch` up to, not including, `superseded`:

    epoch        1        2        3        4        5
    topic/a      |--put---|--put------------|--deleted (body is null) …
    topic/b               |--put-------------------------------------- …

So the set at any epoch E is `epoch <= E and (superseded is null or superseded > E)`, an
answer that no later change can alter: readers need no lock to see one whole set.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    ForeignKey,
    Index,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

KIND_LENGTH = 64
NAME_LENGTH = 256
ACTOR_LENGTH = 256
REASON_LENGTH = 2000
MARK_LENGTH = 32
# Where PostgreSQL tells listeners of a new epoch.
CHANNEL = "penstock_epoch"

_ORIGIN = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Moment(TypeDecorator[datetime]):
    """A point in time: microseconds since 1970 in the database, aware UTC in Python.

    An integer means the same in both databases and sorts as time does.
    """

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Turn an aware datetime into microseconds."""
        del dialect
        return None if value is None else (value - _ORIGIN) // _MICROSECOND

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Turn microseconds into an aware datetime."""
        del dialect
        return None if value is None else _ORIGIN + int(value) * _MICROSECOND


# One row per change. Row 0 is made with the store. `mark` is random: a follower that
# finds another mark at the epoch it holds knows that the database was restored from a
# backup or replaced, and loads everything anew instead of trusting equal numbers.
epochs = Table(
    "epochs",
    metadata,
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("mark", String(MARK_LENGTH), nullable=False),
    Column("at", Moment, nullable=False),
    Column("actor", String(ACTOR_LENGTH), nullable=False),
    Column("reason", String(REASON_LENGTH), nullable=False),
)

revisions = Table(
    "revisions",
    metadata,
    Column("kind", String(KIND_LENGTH), primary_key=True),
    Column("name", String(NAME_LENGTH), primary_key=True),
    Column("epoch", BigInteger, ForeignKey(epochs.c.epoch), primary_key=True, autoincrement=False),
    Column("superseded", BigInteger, ForeignKey(epochs.c.epoch)),
    Column("body", Text),  # canonical JSON; null: deleted
)
Index("ix_revisions_epoch", revisions.c.epoch)
Index("ix_revisions_superseded", revisions.c.superseded)
Index(
    "uq_revisions_current",  # the database itself refuses two current revisions of one key
    revisions.c.kind,
    revisions.c.name,
    unique=True,
    sqlite_where=revisions.c.superseded.is_(None),
    postgresql_where=revisions.c.superseded.is_(None),
)
