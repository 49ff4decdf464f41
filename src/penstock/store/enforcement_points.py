"""Enforcement points: the gateways that a new prohibition has to reach before it is answered.

    gateway   register ──▶ look at all opt-outs ──▶ take them over ──▶ confirm ──▶ lease
    whoever   commit ──▶ wait: every point has confirmed this epoch, or has no lease any more
    answers

Rules that hold here:
- A point holds a lease only from a look that came after it was registered and that it has
  confirmed. So a point that has not confirmed an epoch a lease after the commit has none: it
  delivers nothing, and is taken off the list. It registers again before its next look counts.
- Waiting ends after the longest lease of those who are behind at the latest. No clocks of
  two machines are compared: who waits measures from the end of its own commit.
- A gateway that ends in order takes itself off. One that was killed costs the next who opts out
  one lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, String, Table

from penstock.clock import boot_clock
from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.schema import metadata

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
