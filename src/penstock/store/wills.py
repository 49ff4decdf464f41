"""Wills that gateways keep for connected clients, so that they outlive a gateway that is killed.

    keep ──▶ the connection ends ──▶ sent, or no longer to be sent: dropped
      └── its gateway is gone ──▶ taken by another, or by the same one started anew ──▶ sent

Rules that hold here:
- A will has one keeper: the gateway process whose client it is of. Keepers say now and then
  that they are still there. Who finds one gone takes over all of its wills in one transaction,
  so that no two gateways send the same will.
- A client that comes back with a will has no use for one that a gone gateway kept.
- What is stored of a will is the CONNECT that it came with, without the password.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Connection, LargeBinary, String, Table

from penstock.clock import utc_now
from penstock.store.database import Database
from penstock.store.schema import Moment, metadata
from penstock.store.session_state import DIGEST_LENGTH, PRINCIPAL_LENGTH, digest

AREA: Final = "wills"
LIFE: Final = timedelta(seconds=60)
"""How long a keeper counts as being there after it last said so."""
NUMBER_BYTES: Final = 16
KEEPER_LENGTH: Final = 32
PLACE_LENGTH: Final = 256

keepers_table = Table(
    "will_keepers",
    metadata,
    Column("keeper", String(KEEPER_LENGTH), primary_key=True),
    Column("place", String(PLACE_LENGTH), nullable=False),
    Column("held_until", Moment, nullable=False),
)

wills_table = Table(
    "wills",
    metadata,
    Column("number", String(2 * NUMBER_BYTES), primary_key=True),
    Column("keeper", String(KEEPER_LENGTH), nullable=False, index=True),
    Column("client", String(DIGEST_LENGTH), nullable=False, index=True),
    Column("principal", String(PRINCIPAL_LENGTH), nullable=False),
    Column("expiry", BigInteger, nullable=False),
    Column("packet", LargeBinary, nullable=False),
)


@dataclass(frozen=True, slots=True)
class KeptWill:
    """A will of a connected client."""

    number: str
    client: str
    """The client identifier, or its digest where the will was read from the store."""
    principal: str
    expiry: int
    """Of the client's session, in seconds."""
    packet: bytes


@dataclass(frozen=True, slots=True)
class DroppedWill:
    """A will that was sent, or is not to be sent any more."""

    number: str


WillChange = KeptWill | DroppedWill
IsGone = Callable[[str, str], bool]
"""Says of a keeper and its place whether it is known to be no more."""


def make_number() -> str:
    """Return a number for a will."""
    return secrets.token_hex(NUMBER_BYTES)


class WillStore:
    """The wills of one keeper. Threads may share it."""

    def __init__(
        self,
        database: Database,
        keeper: str,
        place: str,
        *,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = database
        self._keeper = keeper
        self._place = place[:PLACE_LENGTH]
        self._clock = clock

    def apply(self, changes: Sequence[WillChange]) -> None:
        """Make changes durable in their order, all of them or none."""
        with self._database.write(AREA) as connection:
            if any(isinstance(it, KeptWill) for it in changes):
                self._renew(connection)
            for change in changes:
                if isinstance(change, DroppedWill):
                    gone = wills_table.c.number == change.number
                    connection.execute(wills_table.delete().where(gone))
                else:
                    self._keep(connection, change)

    def renew(self) -> bool:
        """Say that this keeper is still there; False where its wills were taken from it."""
        with self._database.write(AREA) as connection:
            return self._renew(connection)

    def take(self, is_gone: IsGone) -> list[KeptWill]:
        """Take over the wills of keepers that are gone; return them."""
        with self._database.read() as connection:
            if not self._find_gone(connection, is_gone):
                return []
        wills = wills_table
        with self._database.write(AREA) as connection:
            gone = self._find_gone(connection, is_gone)
            theirs = wills.c.keeper.in_(gone)
            rows = connection.execute(sa.select(wills).where(theirs)).all()
            if rows:
                self._renew(connection)
                connection.execute(wills.update().where(theirs).values(keeper=self._keeper))
            connection.execute(keepers_table.delete().where(keepers_table.c.keeper.in_(gone)))
        return [KeptWill(it.number, it.client, it.principal, it.expiry, it.packet) for it in rows]

    def leave(self) -> None:
        """Let others have what is left, at once."""
        with self._database.write(AREA) as connection:
            mine = keepers_table.c.keeper == self._keeper
            connection.execute(keepers_table.update().where(mine).values(held_until=self._clock()))

    def _find_gone(self, connection: Connection, is_gone: IsGone) -> list[str]:
        now = self._clock()
        others = keepers_table.c.keeper != self._keeper
        return [
            it.keeper
            for it in connection.execute(sa.select(keepers_table).where(others))
            if it.held_until <= now or is_gone(it.keeper, it.place)
        ]

    def _keep(self, connection: Connection, will: KeptWill) -> None:
        client = digest(will.client)
        connection.execute(wills_table.delete().where(wills_table.c.client == client))
        connection.execute(
            sa.insert(wills_table).values(
                number=will.number,
                keeper=self._keeper,
                client=client,
                principal=will.principal,
                expiry=will.expiry,
                packet=will.packet,
            )
        )

    def _renew(self, connection: Connection) -> bool:
        held_until = self._clock() + LIFE
        mine = keepers_table.c.keeper == self._keeper
        renewed = connection.execute(
            keepers_table.update().where(mine).values(held_until=held_until)
        )
        if renewed.rowcount:
            return True
        connection.execute(
            sa.insert(keepers_table).values(
                keeper=self._keeper, place=self._place, held_until=held_until
            )
        )
        return False
