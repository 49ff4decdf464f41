"""Privacy requests in both databases: one transaction, leases, and no names."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.errors import UnavailableError, UsageError
from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.requests import CHECK, SEND, NewRequest, RequestBook
from penstock.store.rights.tables import ProgressEvent, ProgressStatus, RequestStatus, Sealer

SECRET = bytes(range(32))
START = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(database: Database, clock: Clock) -> RequestBook:
    consent = ConsentBook(database, SubjectMarks(SECRET))
    return RequestBook(database, consent, Sealer(SECRET), clock=clock)


def request(key: str = "k1", action: str = "opt-out", **changed: Any) -> NewRequest:
    given: dict[str, Any] = {
        "publisher": "portal",
        "control": "ads",
        "subject": "Jörg Müller",
        "categories": (),
        "subscribers": ("crm", "mail"),
        "purposes": ("marketing",),
    } | changed
    spans = dict.fromkeys(given.pop("subscribers"), timedelta(days=1))
    return NewRequest(key=key, action=action, subscribers=spans, **given)


def refusing(book: RequestBook, database: Database) -> set[str]:
    found = ConsentBook(database, SubjectMarks(SECRET)).opt_outs()
    return set(found.refusing(["marketing"]))


def test_a_request_its_progress_profile_and_prohibition_come_together(
    book: RequestBook, database: Database
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("before the commit")

    with pytest.raises(RuntimeError):
        book.submit([request()], 7, then=fail)
    assert book.lease("w", 10, 60) == []
    assert book.profiles.states("Jörg Müller") == []
    assert refusing(book, database) == set()
    (made,) = book.submit([request()], 7)
    assert made.status is RequestStatus.INIT
    assert [it.subscriber for it in book.lease("w", 10, 60)] == ["crm", "mail"]
    assert book.profiles.state_of("Jörg Müller", "ads", "", "opt-in") == "opt-out"
    assert refusing(book, database) == {SubjectMarks(SECRET).of("Jörg Müller")}


def test_the_same_key_is_the_same_request_and_never_another(book: RequestBook) -> None:
    (first,) = book.submit([request()], 7)
    (again,) = book.submit([request()], 8)
    assert (again.id, again.repeated) == (first.id, True)
    with pytest.raises(UsageError, match="another request"):
        book.submit([request(subject="somebody else")], 8)
    (other,) = book.submit([request(publisher="app")], 8)
    assert other.id != first.id


def test_the_last_choice_wins_and_versions_grow(book: RequestBook, database: Database) -> None:
    for number, action in enumerate(["opt-out", "opt-in", "opt-out", "opt-in"]):
        book.submit([request(f"k{number}", action)], 1)
    (state,) = book.profiles.states("Jörg Müller")
    assert (state.state, state.version) == ("opt-in", 4)
    assert refusing(book, database) == set()
    assert len(book.lease("w", 100, 60)) == 8


def test_categories_are_chosen_by_themselves_and_the_whole_replaces_them(book: RequestBook) -> None:
    def state(category: str) -> str:
        return book.profiles.state_of("Jörg Müller", "ads", category, "opt-in")

    book.submit([request("1", categories=("age",), purposes=())], 1)
    assert [state(it) for it in ("", "age", "gender")] == ["opt-in", "opt-out", "opt-in"]
    book.submit([request("2")], 1)
    assert [state(it) for it in ("", "age", "gender")] == ["opt-out"] * 3
    book.submit([request("3", "opt-in", categories=("gender",), purposes=())], 1)
    assert [state(it) for it in ("", "age", "gender")] == ["opt-out", "opt-out", "opt-in"]


def test_a_leased_row_is_for_one_until_its_lease_ends(book: RequestBook, clock: Clock) -> None:
    book.submit([request()], 1)
    assert len(book.lease("one", 1, 60)) == 1
    assert [it.subscriber for it in book.lease("two", 10, 60)] == ["mail"]
    assert book.lease("three", 10, 60) == []
    clock.now += timedelta(seconds=61)
    assert len(book.lease("three", 10, 60)) == 2


def test_whoever_lost_the_lease_schedules_nothing(book: RequestBook, clock: Clock) -> None:
    (made,) = book.submit([request(subscribers=("crm",))], 1)
    book.lease("slow", 1, 60)
    clock.now += timedelta(seconds=61)
    book.lease("next", 1, 60)
    far = clock.now + timedelta(days=9)
    after = book.note(made.id, "crm", ProgressEvent.SENT, holder="slow", next_at=far, action=CHECK)
    assert after is ProgressStatus.SENT  # it was told: that is true whoever says it
    shown = book.show(made.id)
    assert shown is not None
    (row,) = shown[1]
    assert (row.action, row.next_at < far, row.holder) == (SEND, True, "next")


def test_an_answer_during_the_call_leaves_the_lease_to_the_worker(book: RequestBook) -> None:
    """A service may acknowledge before the worker has noted that it was told."""
    (made,) = book.submit([request(subscribers=("crm",))], 1)
    book.lease("w", 1, 60)
    assert book.note(made.id, "crm", ProgressEvent.ACKNOWLEDGED) is ProgressStatus.ACKNOWLEDGED
    assert book.lease("other", 1, 60) == []
    later = START + timedelta(days=1)
    book.note(made.id, "crm", ProgressEvent.SENT, holder="w", action=CHECK, next_at=later)
    shown = book.show(made.id)
    assert shown is not None
    (row,) = shown[1]
    assert (row.status, row.action, row.next_at) == (ProgressStatus.ACKNOWLEDGED, CHECK, later)
    assert book.lease("other", 1, 60) == []


def test_many_workers_get_each_row_once(book: RequestBook) -> None:
    book.submit([request(f"k{number}", subscribers=("crm",)) for number in range(60)], 1)
    found: list[str] = []

    def work(name: str) -> None:
        while got := book.lease(name, 7, 60):
            found.extend(it.request for it in got)

    threads = [threading.Thread(target=work, args=(f"w{it}",)) for it in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(set(found))
    assert len(found) == 60


def test_completed_by_all_it_is_finished_and_nobody_is_named_any_more(book: RequestBook) -> None:
    (made,) = book.submit([request()], 1)
    assert book.subject_of(made.id) == "Jörg Müller"
    book.note(made.id, "crm", ProgressEvent.COMPLETED)
    book.note(made.id, "mail", ProgressEvent.EXPIRED)
    book.note(made.id, "mail", ProgressEvent.SENT)
    book.note(made.id, "mail", ProgressEvent.EXPIRED)
    shown = book.show(made.id)
    assert shown is not None
    assert shown[0].status == RequestStatus.SOMEFAILED
    assert book.subject_of(made.id) == "Jörg Müller"
    book.note(made.id, "mail", ProgressEvent.COMPLETED)  # late, and it counts
    shown = book.show(made.id)
    assert shown is not None
    assert (shown[0].status, shown[0].sealed) == (RequestStatus.COMPLETED, None)
    assert book.subject_of(made.id) is None
    assert book.lease("w", 10, 60) == []


def test_a_failed_one_is_redriven_and_others_are_not(book: RequestBook) -> None:
    (made,) = book.submit([request()], 1)
    book.note(made.id, "crm", ProgressEvent.GAVE_UP)
    book.note(made.id, "mail", ProgressEvent.ACKNOWLEDGED, next_at=None)
    assert book.lease("w", 10, 60) == []
    assert book.redrive([(made.id, "crm"), (made.id, "mail"), (made.id, "nobody")]) == 1
    assert [it.subscriber for it in book.lease("w", 10, 60)] == ["crm"]


def test_no_name_is_in_the_tables(book: RequestBook, database: Database) -> None:
    book.submit([request()], 1)
    book.profiles.set_contact("portal", "Jörg Müller", {"email": "jm@example.org"})
    assert book.profiles.contact("portal", "Jörg Müller") == {"email": "jm@example.org"}
    with database.read() as connection:
        for table in sa.inspect(connection).get_table_names():
            text = repr(list(connection.execute(sa.text(f"SELECT * FROM {table}"))))  # noqa: S608
            assert "Müller" not in text
            assert "M\\xc3\\xbcller" not in text
            assert "jm@example" not in text


def test_a_sealed_value_opens_in_its_place_only() -> None:
    sealer = Sealer(SECRET)
    sealed = sealer.seal("Jörg", "here")
    assert sealer.open(sealed, "here") == "Jörg"
    flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
    for wrong in ((sealed, "there"), (flipped, "here"), (b"", "here")):
        with pytest.raises(UnavailableError, match="cannot be opened"):
            sealer.open(*wrong)
    with pytest.raises(UnavailableError):
        Sealer(bytes(32)).open(sealed, "here")
