"""A key for each person, under which records at Kafka are sealed; destroyed, they read as erased.

    !sealed KEY-ID NONCE CIPHERTEXT        the topic and the key's id are authenticated with it

Rules that hold here:
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

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final

import sqlalchemy as sa
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, String, Table
from sqlalchemy.dialects import postgresql, sqlite

from penstock.clock import utc_now
from penstock.json_text import ERASED, UNREAD
from penstock.store.database import Database
from penstock.store.opt_outs import DIGITS, SubjectMarks
from penstock.store.schema import Moment, metadata
from penstock.store.wrapped_keys import NONCE_BYTES, TAG_BYTES, KeyWrapping, destroying

AREA: Final = "person-keys"
SEALED: Final = b"!sealed "
KEY_BYTES: Final = 32
ID_BYTES: Final = 16
OVERHEAD: Final = len(SEALED) + ID_BYTES + NONCE_BYTES + TAG_BYTES
REMEMBERED: Final = 1_000_000
_CHUNK: Final = 5_000
_ONLY: Final = 1
_OPEN_LIMIT: Final = 4

keys_table = Table(
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
        self._wrapping = KeyWrapping(secret, AREA.replace("-", " "))
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
            self._load(connection, keys_table.c.subject, marks - self._by_mark.keys())
        missing = sorted(marks - self._by_mark.keys())
        if missing:
            dialect = postgresql if self._database.is_postgresql else sqlite
            insert = dialect.insert(keys_table).on_conflict_do_nothing()
            rows = [self._draw(mark) for mark in missing]
            with self._database.write(AREA) as connection:
                connection.execute(insert, rows)
            with self._database.read() as connection:
                self._load(connection, keys_table.c.subject, missing)
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
            self._load(connection, keys_table.c.id, unknown)
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
        with destroying(self._database, AREA) as connection:
            own = keys_table.c.subject == self._marks.of(person)
            gone = connection.execute(keys_table.delete().where(own)).rowcount
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
            some = sa.select(keys_table).where(column.in_(listed[at : at + _CHUNK]))
            for row in connection.execute(some):
                number = bytes.fromhex(row.id)
                key = self._wrapping.unwrap(bytes(row.wrapped), number + row.subject.encode())
                self._by_id[number] = self._by_mark[row.subject] = (number, AESGCM(key))


def _is_name(key: bytes) -> bool:
    try:
        return len(key) > 0 and bool(key.decode())
    except UnicodeDecodeError:
        return False


class PersonKeyAddress:
    """The keys of people by the address of their database: each process opens it for itself.

    Tasks of Spark get it within the functions they run, as they get keys.
    """

    def __init__(self, url: str, secret: bytes) -> None:
        self._url = url
        self._secret = secret

    def __repr__(self) -> str:
        return "PersonKeyAddress()"

    def open(self, topic: str, values: Sequence[bytes | None]) -> list[bytes | None]:
        """Return values as they were sealed; see `PersonKeys.open`."""
        return _open_for(self._url, self._secret, os.getpid()).open(topic, values)


@lru_cache(_OPEN_LIMIT)
def _open_for(url: str, secret: bytes, process: int) -> PersonKeys:
    # By process, because a connection does not survive a fork.
    del process
    return PersonKeys(Database.open(url), secret)
