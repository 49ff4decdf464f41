"""Requests that hold somebody in a situation, and until when that is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.config.secrets import SecretFile
from penstock.errors import UsageError
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms, generate_key
from penstock.store.audit.reader import read_last
from penstock.store.database import Database
from penstock.store.detection.journal import DetectedTransition, DetectionStore, JournalBatch
from penstock.store.detection.situations import Situations
from penstock.store.detection.tables import Cause, Request

HOUR = 3_600_000
START = datetime(2027, 1, 15, 12, tzinfo=UTC)
AT = round(START.timestamp() * 1000)


@pytest.fixture
def situations(database: Database, tmp_path: Path) -> Iterator[Situations]:
    log = AuditLog.open(database, SecretFile(tmp_path / "signing.key"))
    yield Situations(database, log, Pseudonyms(generate_key()), clock=lambda: START)
    log.close()


@pytest.fixture
def gateway(database: Database) -> DetectionStore:
    store = DetectionStore(database, "test", seconds=300)
    store.acquire()
    return store


def ask(situations: Situations, hold: int, subject: str = "ann") -> Request:
    return situations.request("s", subject, "Low", actor="bob", reason="fell", hold=hold)


def enter(at: int, request: Request) -> DetectedTransition:
    return DetectedTransition(
        at, "s", request.subject, None, "Low", None, Cause.MANUAL, request.request
    )


def test_until_when_somebody_is_held_is_told(
    situations: Situations, gateway: DetectionStore, database: Database
) -> None:
    held = ask(situations, HOUR)
    assert situations.find(held.request).hold == HOUR
    gateway.append(
        JournalBatch(
            1, b"", [enter(AT, held), DetectedTransition(AT, "s", "cid", None, "Low", "Up")]
        )
    )
    ann, cid = situations.current()
    assert (ann.subject, ann.held_until) == ("ann", START + timedelta(hours=1))
    assert (cid.subject, cid.held_until) == ("cid", None)
    assert [it.held_until for it in situations.history()] == [None, ann.held_until]
    gateway.append(
        JournalBatch(
            2, b"", [DetectedTransition(AT + HOUR, "s", "ann", "Low", None, None, Cause.TIME)]
        )
    )
    assert [it.subject for it in situations.current()] == ["cid"]
    with database.read() as connection:
        (entry,) = (it.entry for it in read_last(connection, 1))
    assert (entry.kind, json.loads(entry.details)["hold_seconds"]) == ("situation.requested", 3600)


def test_the_last_of_several_steps_of_one_moment_counts(
    situations: Situations, gateway: DetectionStore
) -> None:
    requests = [ask(situations, hold) for hold in (HOUR, 2 * HOUR, 0)]
    for number in (1, 2, 3):
        gateway.append(JournalBatch(number, b"", [enter(AT, requests[number - 1])]))
        (standing,) = situations.current()
        hours = (1, 2, None)[number - 1]
        assert standing.held_until == (hours and START + timedelta(hours=hours))


def test_who_is_held_stays_so_when_history_is_forgotten(
    situations: Situations, gateway: DetectionStore
) -> None:
    requests = [ask(situations, hold, name) for name, hold in (("ann", HOUR), ("bob", 0))]
    gateway.append(JournalBatch(1, b"", [enter(AT, it) for it in requests]))
    later = START + timedelta(minutes=5)
    assert situations.forget(later) == 1
    ann, bob = situations.current()
    assert (ann.held_until, bob.held_until) == (START + timedelta(hours=1), None)
    assert [it.request for it in situations.requests(settled=True)] == [requests[0].request]
    gateway.append(
        JournalBatch(
            2, b"", [DetectedTransition(AT + HOUR, "s", "ann", "Low", None, None, Cause.TIME)]
        )
    )
    assert situations.forget(later) == 1
    assert situations.requests(settled=True) == []


@pytest.mark.parametrize(("situation", "hold"), [(None, 1), ("Low", -1), ("Low", 169 * HOUR)])
def test_what_cannot_be_held_is_refused(
    situations: Situations, situation: str | None, hold: int
) -> None:
    with pytest.raises(UsageError, match="held"):
        situations.request("s", "ann", situation, actor="bob", reason="fell", hold=hold)
    assert situations.requests(settled=True) == []
