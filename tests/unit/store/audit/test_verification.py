"""What verification says; that it finds everything is shown in tests/property."""

import pytest
import sqlalchemy as sa

from penstock.store.audit import verification as module
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.reader import entries, tip
from penstock.store.audit.signatures import FINDINGS_LIMIT, Signer
from penstock.store.audit.verification import verify
from penstock.store.database import Database

START = 1_700_000_000 * 10**9


@pytest.fixture
def log(database: Database) -> AuditLog:
    """A log of 41 entries whose heads at 11, 21 and 31 are kept, too."""
    clock = [START]
    log = AuditLog(database, Signer.generate(), clock=lambda: clock[0])
    for _ in range(4):
        log.append([Entry.make("x", Outcome.DONE, count=number) for number in range(10)])
        clock[0] += 61 * 10**9
    with database.write() as connection:
        if database.is_postgresql:
            connection.execute(sa.text("DROP TRIGGER audit_entries_guard ON audit_entries"))
            connection.execute(sa.text("DROP TRIGGER audit_entries_guard_delete ON audit_entries"))
        else:
            connection.execute(sa.text("DROP TRIGGER audit_entries_no_update"))
            connection.execute(sa.text("DROP TRIGGER audit_entries_no_delete"))
    return log


def run(log: AuditLog, statement: sa.Executable) -> None:
    with log.database.write() as connection:
        connection.execute(statement)


def said(log: AuditLog) -> list[str]:
    return [one.message for one in verify(log.database, log.signer.public_keys).findings]


def test_a_good_log(log: AuditLog) -> None:
    verdict = verify(log.database, log.signer.public_keys)
    assert verdict.ok
    assert (verdict.size, verdict.heads, verdict.first_bad) == (41, 5, None)


def test_a_changed_entry(log: AuditLog) -> None:
    run(log, sa.update(entries).where(entries.c.seq.in_([12, 17])).values(kind="y"))
    assert said(log) == ["entry 12 is not as it was signed", "entry 17 is not as it was signed"]


def test_a_changed_hash(log: AuditLog) -> None:
    run(log, sa.update(entries).where(entries.c.seq == 12).values(hashes=bytes(32)))
    assert said(log) == [
        "the hashes kept with entry 12 were changed; the entry itself is as signed"
    ]


def test_a_changed_entry_with_its_hash_mended(log: AuditLog) -> None:
    run(log, sa.update(entries).where(entries.c.seq == 12).values(kind="y", hashes=bytes(32)))
    assert said(log) == [
        "entries 11 to 20 are not all as they were signed; entry 12 disagrees with its own hash"
    ]


def test_a_missing_entry(log: AuditLog) -> None:
    run(log, sa.delete(entries).where(entries.c.seq == 35))
    assert said(log) == ["entry 35 is missing; 41 entries were signed"]


def test_a_missing_end(log: AuditLog) -> None:
    run(log, sa.delete(entries).where(entries.c.seq > 35))
    assert said(log) == ["entry 36 is missing; 41 entries were signed"]


def test_an_entry_behind_the_end(log: AuditLog) -> None:
    first = [column for column in entries.c if column.name != "seq"]
    copied = sa.select(sa.literal(41), *first).where(entries.c.seq == 40)
    run(log, sa.insert(entries).from_select([column.name for column in entries.c], copied))
    assert said(log) == ["entry 41 stands behind the signed end at 41"]


def test_a_forged_newest_head(log: AuditLog) -> None:
    run(log, sa.update(tip).values(signature=bytes(64)))
    verdict = verify(log.database, log.signer.public_keys)
    assert [one.message for one in verdict.findings] == [
        "the newest head is forged: the signature of the head of size 41 is wrong"
    ], "an older head of the same size still vouches for the entries"


def test_an_end_without_a_signature(log: AuditLog) -> None:
    run(log, sa.update(tip).values(signature=bytes(64)))
    run(log, sa.text("DELETE FROM audit_heads WHERE size > 31"))
    verdict = verify(log.database, log.signer.public_keys)
    assert verdict.findings[1].message == "entries 31 to 40 are covered by no good signature"
    assert verdict.first_bad == 31


def test_an_unknown_key(log: AuditLog) -> None:
    verdict = verify(log.database, Signer.generate().public_keys)
    assert "signed with a key that is not known" in verdict.findings[0].message
    assert not verdict.ok


def test_findings_have_a_limit(log: AuditLog) -> None:
    log.append([Entry.make("x", Outcome.DONE)] * 30)
    run(log, sa.update(entries).where(entries.c.seq >= 41).values(kind="y"))
    verdict = verify(log.database, log.signer.public_keys)
    assert len(verdict.findings) == FINDINGS_LIMIT
    assert verdict.first_bad == 41


def test_pages_and_progress(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 15)
    reached = []
    verdict = verify(
        log.database,
        log.signer.public_keys,
        progress=lambda done, size: reached.append((done, size)),
    )
    assert verdict.ok
    assert reached == [(15, 41), (30, 41), (41, 41)]


def test_a_log_that_grows_meanwhile_is_not_a_finding(log: AuditLog) -> None:
    def grow(done: int, size: int) -> None:
        log.append([Entry.make("x", Outcome.DONE)])

    verdict = verify(log.database, log.signer.public_keys, progress=grow)
    assert verdict.ok, verdict.findings
    assert verdict.size == 41
