"""Nonces that were used, for all gateways of a store: nothing that is good once is good twice.

Rules that hold here:
- A nonce is kept until what it stands for is refused by its time anyway.
- Who spends one first has it: writers come one after another, at all gateways.
- So many are kept at most; beyond that nothing more is let in until some are over.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, String, Table

from penstock.store.database import Database
from penstock.store.schema import metadata

AREA: Final = "nonces"
LIMIT: Final = 100_000
NONCE_LENGTH: Final = 96

nonces_table = Table(
    "spent_nonces",
    metadata,
    Column("nonce", String(NONCE_LENGTH), primary_key=True),
    Column("until", BigInteger, nullable=False, index=True),
)


class SpentNonces:
    """The nonces that were used."""

    def __init__(self, database: Database, limit: int = LIMIT) -> None:
        self._database = database
        self._limit = limit

    def spend(self, nonce: str, now: int, until: int) -> bool:
        """Use a nonce; False where it was used, or too many are kept. Milliseconds since 1970."""
        table = nonces_table
        with self._database.write(AREA) as connection:
            connection.execute(table.delete().where(table.c.until < now))
            query = sa.select(sa.func.count()).select_from(table)
            known = connection.scalar(query.where(table.c.nonce == nonce))
            if known or (connection.scalar(query) or 0) >= self._limit:
                return False
            connection.execute(table.insert().values(nonce=nonce, until=until))
        return True
