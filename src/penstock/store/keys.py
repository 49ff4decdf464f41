"""Keys in the store, wrapped under one that is not there: of key groups, and of people.

    !sealed KEY-ID NONCE CIPHERTEXT        the topic and the key's id are authenticated with it

Rules that hold here:
- What wraps follows from a secret of the installation and a purpose, so that a key of one
  purpose never unwraps as one of another. Context that belongs to a key is authenticated with it.
- What is deleted while `destroying` is overwritten in the file, where SQLite would leave it.
- Keys and the state of groups are wrapped; what unwraps them is not in the database.
- The state of a group that this installation manages changes in one transaction, so that managers
  on several hosts take turns: any of them can go on where another one ended.
- A number rises with every change. Who remembers keys asks for it, and loads them again.
- Destroyed keys leave nothing behind in the database.
- A key is drawn at random when the first record of a person is sealed. At rest it is wrapped under
  a key that is not in the database; people are known by marks alone.
- What was destroyed cannot be made again: a record that comes later gets another key, with
  another id. A value whose key is gone is `ERASED`, and no error.
- Keys that were used are remembered, until some key is destroyed anywhere: a number that rises
  with every destruction is asked for with each batch.
- A value that does not open under its key was tampered with. It stays as it is, which is no
  record to anybody.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, String, Table
from sqlalchemy.dialects import postgresql, sqlite

from penstock.clock import utc_now
from penstock.config.secrets import KeyFile
from penstock.errors import UnavailableError
from penstock.json_text import ERASED, UNREAD
from penstock.store.database import Database
from penstock.store.opt_outs import DIGITS, SubjectMarks
from penstock.store.schema import Moment, metadata
from penstock.trust.keys import DomainKey

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


class KeyWrapping:
    """Wraps keys of one purpose. Threads may share it."""

    def __init__(self, secret: bytes, purpose: str) -> None:
        self.key = hmac.digest(secret, f"penstock {purpose}".encode(), "sha256")
        """What wraps: all that is needed of the secret to unwrap keys of this purpose."""
        self._cipher = AESGCM(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyWrapping) and hmac.compare_digest(other.key, self.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __getstate__(self) -> bytes:
        """Let another process of this installation unwrap."""
        return self.key

    def __setstate__(self, key: bytes) -> None:
        """Go on with what wraps."""
        self.key, self._cipher = key, AESGCM(key)

    def wrap(self, key: bytes, context: bytes) -> bytes:
        """Return a key as it may be stored."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """Return a key that was stored; `InvalidTag` where it is not the one of this context."""
        return self._cipher.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], context)


@contextmanager
def destroying(database: Database, area: str) -> Iterator[Connection]:
    """Write in a transaction whose deletions leave nothing behind."""
    with database.write(area) as connection:
        if not database.is_postgresql:
            connection.exec_driver_sql("PRAGMA secure_delete=ON")
        yield connection
        if not database.is_postgresql:
            connection.exec_driver_sql("PRAGMA secure_delete=OFF")


GROUP_AREA: Final = "group-keys"
_UUID_DIGITS: Final = 32
_ONLY: Final = 1

group_keys_table = Table(
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


def group_wrapping(file: KeyFile) -> KeyWrapping:
    """Return what wraps the keys of groups, by the private key of the domain, which is there."""
    return KeyWrapping(DomainKey.parse(file.read(), file.path).seed(), GROUP_AREA.replace("-", " "))


def open_group_keys(database: Database, file: KeyFile) -> GroupKeys:
    """Return the keys of this installation, by the private key of its domain."""
    return GroupKeys(database, group_wrapping(file))


class GroupKeys:
    """The keys of groups in a database. Used by one thread."""

    def __init__(self, database: Database, wrapping: KeyWrapping) -> None:
        self._database = database
        self._wrapping = wrapping

    def changes(self) -> int:
        """Return the number that rises with every change of keys."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(changes_table.c.number)) or 0

    def keys(self) -> list[StoredKey]:
        """Return all keys, by resource and generation."""
        order = (group_keys_table.c.resource, group_keys_table.c.generation)
        with self._database.read() as connection:
            rows = connection.execute(sa.select(group_keys_table).order_by(*order)).all()
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
        with self._database.write(GROUP_AREA) as connection:
            connection.execute(dialect.insert(group_keys_table).on_conflict_do_nothing(), rows)
            _rise(connection)

    def holds(self, resource: UUID, generation: int) -> bool:
        """Tell whether a generation is held, or a later one."""
        own = group_keys_table.c
        wanted = sa.select(sa.func.max(own.generation)).where(own.resource == resource.hex)
        with self._database.read() as connection:
            newest = connection.scalar(wanted)
        return newest is not None and newest >= generation

    def destroy(self, keys: Iterable[tuple[UUID, int]]) -> int:
        """Destroy generations of resources; return how many there were."""
        gone = 0
        with destroying(self._database, GROUP_AREA) as connection:
            for resource, generation in keys:
                own = (group_keys_table.c.resource == resource.hex) & (
                    group_keys_table.c.generation == generation
                )
                gone += connection.execute(group_keys_table.delete().where(own)).rowcount
            if gone:
                _rise(connection)
        return gone

    def change_group(
        self, resource: UUID, side: str, change: Callable[[bytes | None], bytes | None]
    ) -> None:
        """Change the state of a group on one side of it, in one transaction; None: nothing left."""
        own = (groups_table.c.resource == resource.hex) & (groups_table.c.side == side)
        context = side.encode() + resource.bytes
        with destroying(self._database, GROUP_AREA) as connection:
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


PERSON_AREA: Final = "person-keys"
SEALED: Final = b"!sealed "
KEY_BYTES: Final = 32
ID_BYTES: Final = 16
OVERHEAD: Final = len(SEALED) + ID_BYTES + NONCE_BYTES + TAG_BYTES
REMEMBERED: Final = 1_000_000
_CHUNK: Final = 5_000

person_keys_table = Table(
    "person_keys",
    metadata,
    Column("id", String(2 * ID_BYTES), primary_key=True),
    Column("subject", String(DIGITS), nullable=False, unique=True),
    Column("wrapped", LargeBinary, nullable=False),
    Column("at", Moment, nullable=False),
)
destructions_table = Table(
    "person_key_destructions",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
)
_DESTROYED: Final = sa.select(destructions_table.c.number)

_Key = tuple[bytes, AESGCM]
"""The id of a key, and what seals and opens under it."""


class PersonKeys:
    """The keys of people in a database. Used by one thread."""

    def __init__(
        self, database: Database, secret: bytes, *, clock: Callable[[], datetime] = utc_now
    ) -> None:
        """Take the secret of consent, from which what wraps keys and marks people follows."""
        self._database = database
        self._marks = SubjectMarks(secret)
        self._wrapping = KeyWrapping(secret, PERSON_AREA.replace("-", " "))
        self._clock = clock
        self._by_mark: dict[str, _Key] = {}
        self._by_id: dict[bytes, _Key] = {}
        self._destroyed = -1

    # --- sealing ---

    def seal(
        self, topic: str, people: Sequence[bytes], values: Sequence[bytes], most: int
    ) -> tuple[list[bytes], list[bytes]]:
        """Return marks in the place of people, and the values sealed; those of nobody as they are.

        A value that would be longer than `most` is cut, behind the mark of what is no record.
        """
        marks = {it: self._marks.of(it.decode()) for it in set(people) if _is_name(it)}
        keys = self._find_or_make(set(marks.values()))
        place = topic.encode()
        named, made = [], []
        for person, value in zip(people, values, strict=True):
            mark = marks.get(person)
            if mark is None:
                named.append(b"")
                made.append(value)
                continue
            if len(value) > most - OVERHEAD:
                value = (UNREAD + value)[: most - OVERHEAD]  # noqa: PLW2901 - what is sealed
            number, cipher = keys[mark]
            nonce = os.urandom(NONCE_BYTES)
            named.append(mark.encode())
            made.append(SEALED + number + nonce + cipher.encrypt(nonce, value, number + place))
        return named, made

    def _find_or_make(self, marks: set[str]) -> dict[str, _Key]:
        with self._database.read() as connection:
            self._look(connection)
            self._load(connection, person_keys_table.c.subject, marks - self._by_mark.keys())
        missing = sorted(marks - self._by_mark.keys())
        if missing:
            dialect = postgresql if self._database.is_postgresql else sqlite
            insert = dialect.insert(person_keys_table).on_conflict_do_nothing()
            rows = [self._draw(mark) for mark in missing]
            with self._database.write(PERSON_AREA) as connection:
                connection.execute(insert, rows)
            with self._database.read() as connection:
                self._load(connection, person_keys_table.c.subject, missing)
        return {mark: self._by_mark[mark] for mark in marks}

    def _draw(self, mark: str) -> Mapping[str, object]:
        number, key = secrets.token_bytes(ID_BYTES), secrets.token_bytes(KEY_BYTES)
        wrapped = self._wrapping.wrap(key, number + mark.encode())
        return {"id": number.hex(), "subject": mark, "wrapped": wrapped, "at": self._clock()}

    # --- opening ---

    def open(self, topic: str, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values as they were sealed; `ERASED` where the key is gone; others as they are."""
        start, end = len(SEALED), len(SEALED) + ID_BYTES
        wanted = {it[start:end] for it in values if it is not None and it.startswith(SEALED)}
        with self._database.read() as connection:
            self._look(connection)
            unknown = [it.hex() for it in wanted - self._by_id.keys()]
            self._load(connection, person_keys_table.c.id, unknown)
        place = topic.encode()
        return [self._open(it, place) for it in values]

    def _open(self, value: bytes | None, place: bytes) -> bytes | None:
        if value is None or not value.startswith(SEALED):
            return value
        start = len(SEALED) + ID_BYTES
        number = value[len(SEALED) : start]
        known = self._by_id.get(number)
        if known is None:
            return ERASED
        nonce, sealed = value[start : start + NONCE_BYTES], value[start + NONCE_BYTES :]
        try:
            return known[1].decrypt(nonce, sealed, number + place)
        except (InvalidTag, ValueError):
            return value

    # --- destroying ---

    def destroy(self, person: str) -> int:
        """Destroy the key of a person; return how many there were."""
        with destroying(self._database, PERSON_AREA) as connection:
            own = person_keys_table.c.subject == self._marks.of(person)
            gone = connection.execute(person_keys_table.delete().where(own)).rowcount
            if gone:
                number = connection.scalar(_DESTROYED)
                if number is None:
                    connection.execute(destructions_table.insert().values(id=_ONLY, number=1))
                else:
                    connection.execute(destructions_table.update().values(number=number + 1))
        return gone

    # --- inside ---

    def _look(self, connection: Connection) -> None:
        """Forget what is remembered where a key was destroyed since, or there is too much."""
        number = connection.scalar(_DESTROYED) or 0
        if number != self._destroyed or len(self._by_id) > REMEMBERED:
            self._by_id.clear()
            self._by_mark.clear()
            self._destroyed = number

    def _load(self, connection: Connection, column: sa.Column[str], wanted: Iterable[str]) -> None:
        listed = list(wanted)
        for at in range(0, len(listed), _CHUNK):
            some = sa.select(person_keys_table).where(column.in_(listed[at : at + _CHUNK]))
            for row in connection.execute(some):
                number = bytes.fromhex(row.id)
                key = self._wrapping.unwrap(bytes(row.wrapped), number + row.subject.encode())
                self._by_id[number] = self._by_mark[row.subject] = (number, AESGCM(key))


def _is_name(key: bytes) -> bool:
    try:
        return len(key) > 0 and bool(key.decode())
    except UnicodeDecodeError:
        return False
