"""Registrations: each is decided once, and what one user may have waiting is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.model.document import Document
from penstock.store.database import Database
from penstock.store.rights.registrations import (
    KEPT,
    LONGEST,
    MOST_WAITING,
    RegistrationBook,
    RegistrationStatus,
)

SERVICE = Document("control-subscriber", "crm", {"control": "forget", "uri": "https://crm.example"})


class Ticking:
    """A clock that never says the same twice."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


@pytest.fixture
def book(tmp_path: Path) -> Iterator[RegistrationBook]:
    with Database.open(f"sqlite:///{tmp_path / 'penstock.db'}") as database:
        yield RegistrationBook(database, clock=Ticking())


def test_one_is_decided_once(book: RegistrationBook) -> None:
    made = book.propose("nurse", SERVICE, "we need it")
    (held,) = book.waiting()
    assert (held.id, held.user, held.document, held.why) == (made, "nurse", SERVICE, "we need it")
    assert book.decide(made, RegistrationStatus.REFUSED, "officer", "name the team")
    assert not book.decide(made, RegistrationStatus.APPROVED, "officer")
    found = book.find(made)
    assert found is not None
    assert (found.status, found.decided_by, found.reason) == (
        RegistrationStatus.REFUSED,
        "officer",
        "name the team",
    )
    assert not book.waiting()
    assert book.find("0" * 32) is None


def test_one_user_has_so_many_waiting_and_keeps_out_nobody(book: RegistrationBook) -> None:
    for _ in range(MOST_WAITING):
        book.propose("pump", SERVICE, "")
    with pytest.raises(UsageError, match=f"{MOST_WAITING} registrations of yours"):
        book.propose("pump", SERVICE, "")
    book.propose("nurse", SERVICE, "")
    with pytest.raises(UsageError, match=str(LONGEST)):
        book.propose("nurse", Document("control-publisher", "x", {"controls": ["y" * LONGEST]}), "")


def test_old_ones_are_forgotten_and_waiting_ones_are_not(book: RegistrationBook) -> None:
    first = book.propose("pump", SERVICE, "")
    for _ in range(KEPT + 5):
        book.decide(book.propose("pump", SERVICE, ""), RegistrationStatus.WITHDRAWN, "pump")
    kept = book.of("pump")
    assert len(kept) <= KEPT + 1
    assert first in {it.id for it in kept}
