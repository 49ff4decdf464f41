from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.config.secrets import SecretFile
from penstock.errors import DeniedError, UsageError
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms, generate_key
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from penstock.store.detection.journal import (
    DetectedTransition,
    DetectionStore,
    JournalBatch,
    LeaseLostError,
    find_leader,
)
from penstock.store.detection.situations import REQUEST_LIFE, Situations
from penstock.store.detection.tables import Cause, State, as_stored

START = datetime(2026, 3, 1, 8, tzinfo=UTC)


class Watch:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def log(database: Database, tmp_path: Path) -> Iterator[AuditLog]:
    log = AuditLog.open(database, SecretFile(tmp_path / "signing.key"))
    yield log
    log.close()


@pytest.fixture
def situations(database: Database, log: AuditLog, watch: Watch) -> Situations:
    return Situations(database, log, Pseudonyms(generate_key()), clock=watch)


def make_store(database: Database, watch: Watch, place: str = "here") -> DetectionStore:
    return DetectionStore(database, place, seconds=10, clock=watch)


def step(
    subject: str, target: str | None, source: str | None = None, at: int = 0
) -> DetectedTransition:
    return DetectedTransition(at, "covid", subject, source, target, "Symptom")


def test_only_one_detects_and_who_was_too_slow_writes_nothing(
    database: Database, watch: Watch
) -> None:
    first, second = make_store(database, watch, "a"), make_store(database, watch, "b")
    assert first.acquire().holder == first.holder
    assert second.acquire().place == "a"
    watch.pass_by(9)
    first.append(JournalBatch(1, b"one"))  # renews the lease
    watch.pass_by(9)
    assert second.acquire().holder == first.holder
    watch.pass_by(2)
    assert second.acquire().holder == second.holder
    with pytest.raises(LeaseLostError):
        first.append(JournalBatch(2, b"lost", [step("p", "Severe")]))
    with pytest.raises(LeaseLostError):
        first.keep(b"lost", 2, [])
    assert second.load() == (None, 1, [b"one"])
    second.release()
    assert first.acquire().holder == first.holder
    found = find_leader(database)
    assert found is not None
    assert found.place == "a"


def test_a_snapshot_replaces_the_steps_before_it(database: Database, watch: Watch) -> None:
    store = make_store(database, watch)
    store.acquire()
    assert store.load() == (None, 0, [])
    for number in range(1, 6):
        store.append(JournalBatch(number, b"%d" % number))
    store.keep(b"snapshot", 3, [("covid", "p", "Severe", 1000)])
    assert store.load() == (b"snapshot", 5, [b"4", b"5"])
    store.keep(b"later", 5, [])
    assert store.load() == (b"later", 5, [])
    # One that was saved earlier and comes late would bring back what is no longer there.
    store.keep(b"late", 4, [])
    assert store.load() == (b"later", 5, [])


def test_history_and_what_holds_come_with_the_steps(
    database: Database, watch: Watch, situations: Situations
) -> None:
    store = make_store(database, watch)
    store.acquire()
    store.append(
        JournalBatch(1, b"", [step("p", "Suspected", at=1000), step("q", "Possible", at=1001)])
    )
    steps = [step("p", "Severe", "Suspected", 2000), step("p", None, "Severe", 2000)]
    store.append(JournalBatch(2, b"", steps))
    assert [(it.subject, it.situation) for it in situations.current()] == [("q", "Possible")]
    assert situations.current(subject="p") == []
    past = situations.history(subject="p")
    assert [(it.source, it.target) for it in past] == [
        ("Severe", None),
        ("Suspected", "Severe"),
        (None, "Suspected"),
    ]
    assert past[0].at == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert {it.cause for it in past} == {Cause.DETECTED}
    assert situations.history(subject="p", before=past[0].number, limit=1) == [past[1]]
    assert situations.forget(datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)) == 2
    assert len(situations.history()) == 2


@pytest.mark.parametrize("subject", ["x" * 300, "a\0b", "\ud800", "line\nbreak"])
def test_any_subject_can_be_stored_and_found(
    database: Database, watch: Watch, situations: Situations, subject: str
) -> None:
    store = make_store(database, watch)
    store.acquire()
    store.append(JournalBatch(1, b"", [step(subject, "Severe"), step(subject + "!", "Severe")]))
    found = situations.current("covid", subject)
    assert [it.subject for it in found] == [as_stored(subject)]
    assert as_stored(subject) != as_stored(subject + "!")


def test_a_request_is_carried_out_and_named_in_the_history(
    database: Database, watch: Watch, situations: Situations, log: AuditLog
) -> None:
    asked = situations.request("covid", "p", "Severe", actor="ann", reason="collapsed")
    assert situations.ready() == [asked]
    store = make_store(database, watch)
    store.acquire()
    made = DetectedTransition(0, "covid", "p", None, "Severe", None, Cause.MANUAL, asked.request)
    store.append(JournalBatch(1, b"", [made], [(asked.request, "")]))
    assert situations.ready() == []
    assert situations.find(asked.request).state is State.DONE
    (past,) = situations.history()
    assert (past.actor, past.reason, past.cause) == ("ann", "collapsed", Cause.MANUAL)
    with log.database.read() as connection:
        kinds = [it.entry.kind for it in read_last(connection, 10)]
    assert "situation.requested" in kinds


def test_two_persons(situations: Situations, watch: Watch) -> None:
    asked = situations.request(
        "covid", "p", None, actor="ann", reason="a mistake", two_persons=True
    )
    assert situations.ready() == []
    with pytest.raises(DeniedError, match="cannot approve"):
        situations.approve(asked.request, actor="ann")
    assert situations.ready() == []
    ready = situations.approve(asked.request, actor="bob")
    assert situations.ready() == [ready]
    assert ready.approver == "bob"
    with pytest.raises(UsageError, match="is ready"):
        situations.approve(asked.request, actor="eve")
    watch.pass_by(REQUEST_LIFE.total_seconds() + 1)
    assert situations.ready() == []
    assert situations.find(asked.request).state is State.EXPIRED
    with pytest.raises(UsageError, match="is expired"):
        situations.withdraw(asked.request, actor="ann")


def test_a_withdrawn_request_is_not_carried_out(situations: Situations) -> None:
    asked = situations.request("covid", "p", "Severe", actor="ann", reason="collapsed")
    assert situations.withdraw(asked.request, actor="bob").state is State.WITHDRAWN
    assert situations.ready() == []
    assert situations.requests() == []
    assert [it.state for it in situations.requests(settled=True)] == [State.WITHDRAWN]


@pytest.mark.parametrize("reason", ["", "  ", "x" * 3000, "a\nb"])
def test_a_request_needs_a_reason(situations: Situations, reason: str) -> None:
    with pytest.raises(UsageError, match="reason"):
        situations.request("covid", "p", None, actor="ann", reason=reason)
