"""Keys of key groups in the store: all gateways of an installation have those that it was given.

Rules that hold here:
- Keys and the state of groups are wrapped; what unwraps them is not in the database.
- The state of a group that this installation manages changes in one transaction, so that managers
  on several hosts take turns: any of them can go on where another one ended.
- A number rises with every change. Who remembers keys asks for it, and loads them again.
- Destroyed keys leave nothing behind in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, String, Table
from sqlalchemy.dialects import postgresql, sqlite

from penstock.config.secrets import KeyFile
from penstock.errors import UnavailableError
from penstock.store.database import Database
from penstock.store.schema import metadata
from penstock.store.wrapped_keys import KeyWrapping, destroying
from penstock.trust.keys import DomainKey

AREA: Final = "group-keys"
_UUID_DIGITS: Final = 32
_ONLY: Final = 1

keys_table = Table(
    "group_keys",
    metadata,
    Column("resource", String(_UUID_DIGITS), primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, nullable=False),
    Column("wrapped", LargeBinary, nullable=False),
)
groups_table = Table(
    "key_groups",
    metadata,
    Column("resource", String(_UUID_DIGITS), primary_key=True),
    Column("side", String(16), primary_key=True),
    Column("wrapped", LargeBinary, nullable=False),
)
changes_table = Table(
    "group_key_changes",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)


class StoredKey(NamedTuple):
    """One generation of the key of a resource."""

    resource: UUID
    generation: int
    start: int
    secret: bytes


def open_group_keys(database: Database, file: KeyFile) -> GroupKeys:
    """Return the keys of this installation, by the private key of its domain, which is there."""
    own = DomainKey.parse(file.read(), file.path)
    return GroupKeys(database, own.seed())


class GroupKeys:
    """The keys of groups in a database. Used by one thread."""

    def __init__(self, database: Database, secret: bytes) -> None:
        self._database = database
        self._wrapping = KeyWrapping(secret, "group keys")

    def changes(self) -> int:
        """Return the number that rises with every change of keys."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(changes_table.c.number)) or 0

    def keys(self) -> list[StoredKey]:
        """Return all keys, by resource and generation."""
        order = (keys_table.c.resource, keys_table.c.generation)
        with self._database.read() as connection:
            rows = connection.execute(sa.select(keys_table).order_by(*order)).all()
        return [
            StoredKey(
                UUID(hex=row.resource),
                row.generation,
                row.start,
                self._unwrap(bytes(row.wrapped), _context(row.resource, row.generation)),
            )
            for row in rows
        ]

    def add(self, keys: Iterable[StoredKey]) -> None:
        """Keep keys; a generation that is there stays as it is."""
        rows = [
            {
                "resource": key.resource.hex,
                "generation": key.generation,
                "start": key.start,
                "wrapped": self._wrapping.wrap(
                    key.secret, _context(key.resource.hex, key.generation)
                ),
            }
            for key in keys
        ]
        if not rows:
            return
        dialect = postgresql if self._database.is_postgresql else sqlite
        with self._database.write(AREA) as connection:
            connection.execute(dialect.insert(keys_table).on_conflict_do_nothing(), rows)
            _rise(connection)

    def destroy(self, keys: Iterable[tuple[UUID, int]]) -> int:
        """Destroy generations of resources; return how many there were."""
        gone = 0
        with destroying(self._database, AREA) as connection:
            for resource, generation in keys:
                own = (keys_table.c.resource == resource.hex) & (
                    keys_table.c.generation == generation
                )
                gone += connection.execute(keys_table.delete().where(own)).rowcount
            if gone:
                _rise(connection)
        return gone

    def change_group(
        self, resource: UUID, side: str, change: Callable[[bytes | None], bytes | None]
    ) -> None:
        """Change the state of a group on one side of it, in one transaction; None: nothing left."""
        own = (groups_table.c.resource == resource.hex) & (groups_table.c.side == side)
        context = side.encode() + resource.bytes
        with destroying(self._database, AREA) as connection:
            found = connection.scalar(sa.select(groups_table.c.wrapped).where(own))
            before = None if found is None else self._unwrap(bytes(found), context)
            after = change(before)
            if after == before:
                return
            connection.execute(groups_table.delete().where(own))
            if after is not None:
                wrapped = self._wrapping.wrap(after, context)
                row = {"resource": resource.hex, "side": side, "wrapped": wrapped}
                connection.execute(groups_table.insert(), row)

    def destroy_old(self, now: int, delay: int) -> int:
        """Destroy keys that ended longer ago than the delay; return how many. In milliseconds."""
        ends: dict[tuple[UUID, int], int] = {}
        held = self.keys()
        for key, after in pairwise(held):
            if key.resource == after.resource:
                ends[key.resource, key.generation] = after.start
        old = [it for it, end in ends.items() if now > end + delay]
        return self.destroy(old) if old else 0

    def group(self, resource: UUID, side: str) -> bytes | None:
        """Return the state of a group on one side of it."""
        own = (groups_table.c.resource == resource.hex) & (groups_table.c.side == side)
        with self._database.read() as connection:
            found = connection.scalar(sa.select(groups_table.c.wrapped).where(own))
        context = side.encode() + resource.bytes
        return None if found is None else self._unwrap(bytes(found), context)

    def groups(self, side: str) -> list[UUID]:
        """Return the groups that this installation has a side of."""
        wanted = sa.select(groups_table.c.resource).where(groups_table.c.side == side)
        with self._database.read() as connection:
            return [UUID(hex=it) for it in connection.scalars(wanted.order_by("resource"))]

    def _unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        try:
            return self._wrapping.unwrap(wrapped, context)
        except (InvalidTag, ValueError):
            raise UnavailableError(
                "keys of sealed streams do not open under this domain's key",
                fix="bring the key back that wrapped them",
            ) from None


def _rise(connection: Connection) -> None:
    risen = changes_table.update().values(number=changes_table.c.number + 1)
    if not connection.execute(risen).rowcount:
        connection.execute(changes_table.insert().values(id=_ONLY, number=1))


def _context(resource: str, generation: int) -> bytes:
    return bytes.fromhex(resource) + generation.to_bytes(4, "big")
