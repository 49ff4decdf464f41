"""What is overdue is moved on in batches, and what is reported is what happened."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from penstock.store.consent import ConsentBook
from penstock.store.database import Database
from penstock.store.opt_outs import SubjectMarks
from penstock.store.rights.compliance import OverdueRule, ServiceFigures
from penstock.store.rights.requests import CHECK, NewRequest, RequestBook
from penstock.store.rights.tables import ProgressEvent, ProgressStatus, RequestStatus, Sealer

SECRET = bytes(range(32))
START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class Clock:
    now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(database: Database, clock: Clock) -> RequestBook:
    consent = ConsentBook(database, SubjectMarks(SECRET))
    return RequestBook(database, consent, Sealer(SECRET), clock=clock)


def submit(book: RequestBook, count: int, services: dict[str, timedelta]) -> list[str]:
    wanted = [
        NewRequest("app", f"{book._clock()}-{it}", "forget", "delete", "ann", (), services, ())
        for it in range(count)
    ]
    return [it.id for it in book.submit(wanted, 1)]


def test_overdue_ones_are_told_again_or_fail_with_an_alert(book: RequestBook, clock: Clock) -> None:
    made = submit(book, 25, {"patient": DAY, "strict": DAY})
    for request in made:
        for name in ("patient", "strict"):
            book.note(request, name, ProgressEvent.SENT, action=CHECK, next_at=clock.now + DAY)
    book.note(made[0], "strict", ProgressEvent.COMPLETED)
    rules = {"patient": OverdueRule(1, ()), "strict": OverdueRule(0, ("email", "sms"))}
    assert book.compliance.sweep(rules.__getitem__).again == 0
    clock.now += DAY
    swept = book.compliance.sweep(rules.__getitem__, batch=7)
    assert (swept.again, len(swept.failed)) == (25, 24)
    assert book.compliance.sweep(rules.__getitem__) == type(swept)()
    assert len(book.lease("w", 100, 60)) == 25
    assert len(book.outbox.lease("w", 100, 60)) == 48
    shown = book.show(made[1])
    assert shown is not None
    assert shown[0].status == RequestStatus.SOMEFAILED
    assert [row.status for row in shown[1]] == [ProgressStatus.SENT, ProgressStatus.FAILED]
    assert [row.rounds for row in shown[1]] == [1, 0]
    assert book.compliance.totals() == (25, 24)


def test_figures_are_those_of_a_plain_count(book: RequestBook, clock: Clock) -> None:
    random_ = random.Random(5)
    expected = {name: dict.fromkeys(("in_time", "late", "open", "failed"), 0) for name in "ab"}
    spans = {"a": DAY, "b": 5 * DAY}
    made = submit(book, 30, spans)
    for request in made:
        for name, span in spans.items():
            what = random_.choice(["in_time", "late", "open", "failed"])
            expected[name][what] += 1
            clock.now = START + (span / 2 if what == "in_time" else 2 * span)
            if what in {"in_time", "late"}:
                book.note(request, name, ProgressEvent.COMPLETED)
                book.note(request, name, ProgressEvent.COMPLETED)
            elif what == "failed":
                book.note(request, name, ProgressEvent.GAVE_UP)
    clock.now = START + 3 * DAY
    found = book.compliance.figures()
    for it in found:
        want = expected[it.subscriber]
        overdue = want["open"] if it.subscriber == "a" else 0
        assert it == ServiceFigures(
            "forget", it.subscriber, 30, want["in_time"], want["late"], want["open"], overdue,
            want["failed"],
        )  # fmt: skip
        had_to = want["in_time"] + want["late"] + want["failed"] + overdue
        assert it.share == want["in_time"] / had_to
    assert book.compliance.figures(START + DAY) == []
