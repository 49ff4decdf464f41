"""The store: whether it can be reached, and which version its tables have."""

from __future__ import annotations

import time
from collections.abc import Iterator

import sqlalchemy as sa

from penstock.config import Config
from penstock.errors import PenstockError
from penstock.store.database import Database
from penstock.store.engines import Address, create_engine
from penstock.store.upgrade import code_version, database_version, is_current
from penstock.supervisor.checks.finding import Finding, Verdict
from penstock.supervisor.part import Part

CLOCKS_APART = 1.0


def look(config: Config, parts: list[Part]) -> Iterator[Finding]:
    """Look at the database without making or upgrading anything."""
    del parts
    try:
        address = Address.parse(config.store.connection_url())
        if address.path is not None and not address.path.exists():
            detail = f"{address.shown} (made at the first use)"
            yield Finding("store", "database", Verdict.OK, detail)
            return
        with Database(address, create_engine(address)) as database:
            yield from _examine(database)
    except PenstockError as error:
        yield Finding("store", "database", Verdict.WRONG, error.message, error.fix)


def _examine(database: Database) -> Iterator[Finding]:
    shown = database.address.shown
    with database.read() as connection:
        yield Finding("store", "database", Verdict.OK, f"{shown} answers")
        version = database_version(connection)
        current = is_current(connection, shown)
        if database.is_postgresql:
            asked = time.time()
            there = float(
                connection.scalar(sa.text("SELECT extract(epoch FROM clock_timestamp())"))
            )
            yield _clocks(there - (asked + time.time()) / 2)
    detail = f"version {version}" if version else "none yet"
    later = "" if current else f"; upgraded to {code_version()} at the next use"
    yield Finding("store", "tables", Verdict.OK, detail + later)


def _clocks(apart: float) -> Finding:
    detail = f"{abs(apart):.1f} s apart from ours"
    if abs(apart) <= CLOCKS_APART:
        return Finding("store", "clock", Verdict.OK, detail)
    return Finding(
        "store", "clock", Verdict.WARNING, detail, "synchronise the clocks of both machines (NTP)"
    )
