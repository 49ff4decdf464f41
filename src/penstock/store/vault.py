"""The vault in the store: sealed originals by vault name and token.

Rules that hold here:
- Only what `masks.supplies.Seal` has sealed is kept here; the key never comes near the store.
- An entry is written once and never changed, until its person is erased: whoever tokenizes the
  same value under the same key, in whichever process, finds the same entry or makes it.
- `put` returns when all entries are durable, so that no token is published before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Column, Connection, LargeBinary, String, Table
from sqlalchemy.dialects import postgresql, sqlite

from penstock.store.database import Database
from penstock.store.schema import metadata

AREA: Final = "vault"
VAULT_LENGTH: Final = 256
TOKEN_LENGTH: Final = 64
CHUNK: Final = 5_000
"""Tokens that are asked for together; SQLite takes some thirty thousand parameters."""
OPEN_LIMIT: Final = 4

entries_table = Table(
    "vault_entries",
    metadata,
    Column("vault", String(VAULT_LENGTH), primary_key=True),
    Column("token", String(TOKEN_LENGTH), primary_key=True),
    Column("sealed", LargeBinary, nullable=False),
)


class StoreVault:
    """The vaults of an open database. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        """Keep sealed values by their tokens; returns when they are safe."""
        # Most values come again and again: those that are there need no writer's turn.
        with self._database.read() as connection:
            missing = sorted(entries.keys() - _find(connection, vault, entries))
        if not missing:
            return
        rows = [{"vault": vault, "token": it, "sealed": entries[it]} for it in missing]
        dialect = postgresql if self._database.is_postgresql else sqlite
        insert = dialect.insert(entries_table).on_conflict_do_nothing()
        with self._database.write(AREA) as connection:
            connection.execute(insert, rows)

    def delete(self, entries: Iterable[tuple[str, str]]) -> int:
        """Forget entries, by vault and token; return how many there were."""
        table, gone = entries_table.c, 0
        with self._database.write(AREA) as connection:
            for vault, token in entries:
                own = sa.and_(table.vault == vault, table.token == token)
                gone += connection.execute(entries_table.delete().where(own)).rowcount
        return gone

    def get(self, vault: str, token: str) -> bytes | None:
        """Return the sealed value of a token, or None where it is not kept."""
        return self.get_all(vault, [token]).get(token)

    def get_all(self, vault: str, tokens: Sequence[str]) -> dict[str, bytes]:
        """Return the sealed values of those tokens that are kept."""
        with self._database.read() as connection:
            return _find(connection, vault, tokens)


class VaultAddress:
    """The vaults of a database by its address: each process opens it for itself.

    Workers of Spark get it within the functions they run, as they get keys.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def put(self, vault: str, entries: Mapping[str, bytes]) -> None:
        """Keep sealed values by their tokens; returns when they are safe."""
        self._open().put(vault, entries)

    def get(self, vault: str, token: str) -> bytes | None:
        """Return the sealed value of a token, or None where it is not kept."""
        return self._open().get(vault, token)

    def _open(self) -> StoreVault:
        return _open_for(self._url, os.getpid())


@lru_cache(OPEN_LIMIT)
def _open_for(url: str, process: int) -> StoreVault:
    # By process, because a connection does not survive a fork.
    del process
    return StoreVault(Database.open(url))


def _find(connection: Connection, vault: str, tokens: Iterable[str]) -> dict[str, bytes]:
    table = entries_table.c
    found: dict[str, bytes] = {}
    wanted = list(tokens)
    for first in range(0, len(wanted), CHUNK):
        chunk = wanted[first : first + CHUNK]
        query = sa.select(table.token, table.sealed).where(
            table.vault == vault, table.token.in_(chunk)
        )
        found |= {token: bytes(sealed) for token, sealed in connection.execute(query)}
    return found
