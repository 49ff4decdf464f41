"""Migrations: bring a database to the version of the code, and refuse one that is newer.

Rules that hold here:
- Versions are the four digits that the files in `versions` begin with, in one
  line without branches; the highest is the version of the code.
- The upgrade runs in one transaction under a lock, so several processes may open a new
  database at once, and a crash leaves either the old version or the new one.
- Alembic is loaded only when there is something to do: opening a current database
  costs one query.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.errors import UnavailableError, quote

MIGRATIONS = Path(__file__).parent
VERSION_TABLE = "penstock_version"
_version = sa.table(VERSION_TABLE, sa.column("version_num", sa.String))


def code_version() -> str:
    """Return the version of the tables that this code works with."""
    return max(path.name[:4] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def database_version(connection: Connection) -> str | None:
    """Return the version the database has; None if it holds no tables of ours yet."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(sa.select(_version.c.version_num))


def is_current(connection: Connection, shown_url: str) -> bool:
    """Say whether the database has the version of the code; refuse one that is newer."""
    found, known = database_version(connection), code_version()
    if found is None or (len(found) == len(known) and found < known):
        return False
    if found == known:
        return True
    raise UnavailableError(
        f"the database {shown_url} has version {quote(found)}; this Penstock knows versions"
        f" up to {quote(known)}",
        fix="install the Penstock that last used this database, or a later one",
    )


def upgrade(connection: Connection) -> None:
    """Run the missing migrations on this connection, inside its open transaction."""
    from alembic import command  # noqa: PLC0415 (slow to load and seldom needed)
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes.update(connection=connection, version_table=VERSION_TABLE)
    command.upgrade(config, "head")
