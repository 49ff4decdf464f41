"""Databases of PostgreSQL for single tests, copied from one that has the tables already.

To run all migrations takes ten times as long as to copy what they made.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.components import PostgresServer

TEMPLATE = "store_as_made"


@functools.cache
def make_template(server: PostgresServer) -> str:
    """Make a store on a server, once, and return the name of its database."""
    from penstock.store.database import Database  # noqa: PLC0415 - where it is asked for

    _do(server, f'CREATE DATABASE "{TEMPLATE}"')
    Database.open(_url_of(server, TEMPLATE)).close()
    return TEMPLATE


@contextmanager
def lend(server: PostgresServer, owner: str, template: str | None = None) -> Iterator[str]:
    """Give the address of a database that lasts as long as the block."""
    name = f"test_{abs(hash(owner)):x}"
    _do(server, f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else ""))
    if template:
        # What tells stores apart is drawn when one is made.
        _do(server, f"UPDATE epochs SET mark = '{uuid.uuid4().hex}'", name)  # noqa: S608
    yield _url_of(server, name)
    _do(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def _url_of(server: PostgresServer, name: str) -> str:
    return f"{server.url.rsplit('/', 1)[0]}/{name}"


def _do(server: PostgresServer, statement: str, database: str = "postgres") -> None:
    import psycopg  # noqa: PLC0415 - only tests that ask for it need the driver

    address = _url_of(server, database).replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement.encode())
