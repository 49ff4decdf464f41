"""Tokens: shown once, bound to a user, and worth nothing once they ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from penstock.definitions import DefinitionSet, read_text
from penstock.errors import DeniedError, UsageError
from penstock.store.access_tokens import TokenAdministration, TokenBook, tokens_table
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.signatures import Signer
from penstock.store.database import Database

TEXT = """
kind: right
name: officers
subjects: [user:officer]
administer: true
---
kind: user
name: banned
blocked: true
"""


class Office:
    def __init__(self, database: Database) -> None:
        self.now = datetime(2026, 11, 18, tzinfo=UTC)
        self.book = TokenBook(database, clock=lambda: self.now)
        self.desk = TokenAdministration(
            self.book,
            AuditLog(database, Signer.generate()),
            Pseudonyms(bytes(32)),
            DefinitionSet.build(read_text(TEXT).documents),
            1,
        )


@pytest.fixture
def office(database: Database) -> Office:
    return Office(database)


def test_a_token_proves_its_user_until_it_expires(office: Office) -> None:
    token, made = office.desk.make("portal", "portal", days=2, note="shop")
    assert office.book.find_user(token) == "portal"
    assert made.status(office.now) == "valid"
    office.now += timedelta(days=2)
    assert office.book.find_user(token) is None
    assert made.status(office.now) == "expired"


def test_a_revoked_token_proves_nothing_from_then_on(office: Office) -> None:
    token, made = office.desk.make("portal", "portal", days=2)
    office.desk.revoke("portal", made.id)
    assert office.book.find_user(token) is None
    ended = office.desk.revoke("officer", made.id)
    assert ended.revoked == office.now


def test_the_secret_is_not_in_the_database(office: Office, database: Database) -> None:
    token, _ = office.desk.make("portal", "portal", days=2)
    with database.read() as connection:
        rows = connection.execute(sa.select(tokens_table)).all()
    assert token.split("_", 2)[2] not in str(rows)


@pytest.mark.parametrize("change", ["", "x", "pst_", "pst_0_0", " {}", "{}=", "{}\n", "PST{}"])
def test_what_is_no_token_proves_nothing(office: Office, change: str) -> None:
    token, _ = office.desk.make("portal", "portal", days=2)
    assert office.book.find_user(change.format(token)) is None


def test_users_have_to_do_with_their_own_tokens_officers_with_all(office: Office) -> None:
    _, made = office.desk.make("portal", "portal", days=2)
    office.desk.make("officer", "crm", days=2)
    assert [it.user for it in office.desk.tokens("portal")] == ["portal"]
    assert {it.user for it in office.desk.tokens("officer")} == {"portal", "crm"}
    for ask in (
        lambda: office.desk.make("crm", "portal", days=2),
        lambda: office.desk.tokens("crm", "portal"),
        lambda: office.desk.revoke("crm", made.id),
        lambda: office.desk.revoke("crm", "0" * 16),
        lambda: office.desk.make("banned", "banned", days=2),
    ):
        with pytest.raises(DeniedError):
            ask()
    with pytest.raises(UsageError, match="blocked"):
        office.desk.make("officer", "banned", days=2)


@pytest.mark.parametrize(
    ("days", "note"), [(0, ""), (-1, ""), (367, ""), (1, "x" * 101), (1, "\n")]
)
def test_a_token_has_an_end_and_a_short_note(office: Office, days: int, note: str) -> None:
    with pytest.raises(UsageError):
        office.desk.make("portal", "portal", days=days, note=note)
