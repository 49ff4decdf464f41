"""Migrations: bring a database to the version of the code, and refuse one that is newer.

Rules that hold here:
- `STEPS` is the one list of versions, in one line without branches; the last is the version of
  the code. A step is a function of a module of this package, by the tables that it makes.
- A step that was released is never changed; a mistake is mended by a further step.
- The upgrade runs in one transaction under a lock, so several processes may open a new
  database at once, and a crash leaves either the old version or the new one.
- Alembic, whose operations the steps are made of, is loaded only when there is something to do:
  opening a current database costs one query.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from penstock.errors import UnavailableError, quote

VERSION_TABLE: Final = "penstock_version"
STEPS: Final[Mapping[str, str]] = {
    "0001": "definitions.make_revisions",
    "0002": "definitions.make_log",
    "0003": "gateways.make_sessions",
    "0004": "gateways.add_session_holders",
    "0005": "definitions.make_kafka_users",
    "0006": "definitions.make_vault",
    "0007": "gateways.make_situations",
    "0008": "gateways.add_detector_addresses",
    "0009": "privacy.make_consent",
    "0010": "gateways.make_wills",
    "0011": "gateways.add_situation_holds",
    "0012": "definitions.make_pruning",
    "0013": "gateways.make_persisted_subscriptions",
    "0014": "gateways.add_session_quotas",
    "0015": "privacy.make_requests",
    "0016": "definitions.make_access_tokens",
    "0017": "privacy.make_notices",
    "0018": "privacy.make_profiles",
    "0019": "privacy.add_publishers_of_contacts",
    "0020": "privacy.make_erasures",
    "0021": "privacy.make_person_keys",
    "0022": "gateways.make_client_requests",
    "0023": "gateways.add_content_filters",
    "0024": "gateways.make_group_keys",
    "0025": "gateways.make_detection_erasures",
    "0026": "privacy.index_requests_by_publisher",
    "0027": "privacy.make_sessions",
    "0028": "gateways.add_clients_away",
    "0029": "privacy.make_registrations",
    "0030": "gateways.make_spent_nonces",
}
_versions: Final = sa.Table(
    VERSION_TABLE,
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


def code_version() -> str:
    """Return the version of the tables that this code works with."""
    return max(STEPS)


def database_version(connection: Connection) -> str | None:
    """Return the version the database has; None if it holds no tables of ours yet."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(sa.select(_versions.c.version_num))


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


def upgrade(connection: Connection, to: str | None = None) -> None:
    """Run the missing steps, up to a version, inside the open transaction of this connection."""
    from alembic.migration import MigrationContext  # noqa: PLC0415 (slow, and seldom needed)
    from alembic.operations import Operations  # noqa: PLC0415

    found = database_version(connection)
    _versions.create(connection, checkfirst=True)
    with Operations.context(MigrationContext.configure(connection)):
        for version, step in STEPS.items():
            if (found is None or version > found) and (to is None or version <= to):
                module, _, name = step.partition(".")
                getattr(import_module(f"{__name__}.{module}"), name)()
                connection.execute(_versions.delete())
                connection.execute(_versions.insert().values(version_num=version))
