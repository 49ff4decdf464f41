"""How many sessions may be kept for somebody, and how many are.

Rules that hold here:
- Sessions count for their user; those of anonymous clients, who are all one principal, for the
  address at which they began. Addresses come hidden.
- Who counts in the transaction that adds a session counts right: writers of sessions come one
  after another, at all gateways of a store.
- A session counts until it ends, whether its client is connected or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from penstock.errors import PenstockError
from penstock.store.session_tables import sessions_table


class SessionQuotaError(PenstockError):
    """Somebody has as many sessions as they may have."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"as many sessions as allowed are kept for you: {most}",
            fix="end one that you have, or connect without keeping the session",
        )


@dataclass(frozen=True, slots=True)
class SessionQuotas:
    """How many sessions there may be."""

    per_user: int = 1 << 30
    per_address: int = 1 << 30
    """Of anonymous clients."""

    def check(self, connection: Connection, principal: str, address: str, now: datetime) -> None:
        """Refuse one more session of a user, or of an anonymous client's address."""
        most = self.per_address if address else self.per_user
        table = sessions_table.c
        theirs = (table.principal == principal, table.address == address, _is_kept(now))
        query = sa.select(sa.func.count()).select_from(sessions_table).where(*theirs)
        if connection.execute(query).scalar_one() >= most:
            raise SessionQuotaError(most)


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """How many sessions are kept, for how many users and addresses, and the most for one."""

    kept: int
    owners: int
    most: int


def count_sessions(connection: Connection, now: datetime) -> SessionCounts:
    """Count the sessions that are kept."""
    owner = (sessions_table.c.principal, sessions_table.c.address)
    each = sa.select(sa.func.count().label("held")).where(_is_kept(now)).group_by(*owner)
    held = each.subquery().c.held
    query = sa.select(sa.func.sum(held), sa.func.count(), sa.func.max(held))
    kept, owners, most = connection.execute(query).one()
    return SessionCounts(int(kept or 0), owners, most or 0)


def _is_kept(now: datetime) -> ColumnElement[bool]:
    ends = sessions_table.c.expires
    return sa.or_(ends.is_(None), ends > now)
