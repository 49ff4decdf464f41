"""Pruning in both databases; that nothing slips through is shown in tests/property."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from penstock.config.secrets import SecretFile
from penstock.errors import UsageError
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog, note_witness
from penstock.store.audit.pruning import ROUTINE, Retention, plan_pruning, prune
from penstock.store.audit.reader import entries, nodes, pruned, read_after, read_last
from penstock.store.audit.signatures import Signer, TamperedError, anchor_path, load_head
from penstock.store.audit.verification import (
    check_proof,
    prove_consistency,
    prove_inclusion,
    verify,
)
from penstock.store.database import Database

NOW = 1_700_000_000
DAY = 86_400
ALL = Retention(30 * DAY, 10**6, 3 * DAY, 10**6)


@pytest.fixture
def log(database: Database) -> AuditLog:
    return AuditLog(database, Signer.generate(), clock=lambda: (NOW - 41 * DAY) * 10**9)


def some(days: float, *outcomes: Outcome) -> list[Entry]:
    at = int((NOW - days * DAY) * 1e6)
    return [
        Entry.make("x", outcome, at=at, count=number) for number, outcome in enumerate(outcomes)
    ]


def seqs(log: AuditLog) -> list[int]:
    with log.database.read() as connection:
        return [one.seq for one in read_after(connection, -1)]


D, A = Outcome.DENIED, Outcome.ALLOWED


def fill(log: AuditLog) -> None:
    """Append 40 days, 10 days and a minute ago: entries 1 to 6, 7 to 12 and 13 to 15."""
    log.append(some(40, D, A, D, D, A, D))
    log.append(some(10, D, A, D, D, A, D))
    log.append(some(1e-3, D, A, D))


def test_denials_go_earlier_and_a_signed_entry_says_what_went(log: AuditLog) -> None:
    fill(log)
    done = prune(log, ALL, now=NOW)
    assert done is not None
    assert (done.before, done.denials, done.others) == (13, 8, 3)
    assert seqs(log) == [8, 11, 13, 14, 15, 16]
    with log.database.read() as connection:
        told = read_last(connection, 1)[0].entry
    assert (told.kind, told.outcome) == ("audit.pruned", "done")
    details = json.loads(told.details)
    assert (details["before"], details["deleted"], details["kept"]) == (13, 11, 2)
    verdict = verify(log.database, log.signer.public_keys)
    assert (verdict.ok, verdict.pruned, verdict.survivors, verdict.size) == (True, 13, 2, 17)
    assert prune(log, ALL, now=NOW) is None


def test_each_class_has_a_number_of_its_own(log: AuditLog) -> None:
    """A flood of denials pushes out denials alone."""
    log.append(some(2, A, A, A))
    log.append(some(1, *[D] * 500))
    done = prune(log, Retention(30 * DAY, 10, 30 * DAY, 10), now=NOW)
    assert done is not None
    assert (done.denials, done.others) == (490, 1)  # the other is that the log was started
    assert seqs(log) == [1, 2, 3, *range(494, 505)]
    assert verify(log.database, log.signer.public_keys).ok


def test_who_reads_what_is_changed_pushes_out_no_grant(log: AuditLog) -> None:
    log.append(some(2, A, A, A))
    for kind in ROUTINE:
        log.append([replace(it, kind=kind) for it in some(1, *[A] * 250)])
    done = prune(log, Retention(30 * DAY, 10, 30 * DAY, 10), now=NOW)
    assert done is not None
    assert (done.denials, done.others) == (490, 1)
    assert seqs(log) == [1, 2, 3, *range(494, 505)]
    assert verify(log.database, log.signer.public_keys).ok


def test_what_is_of_the_last_hour_stays(log: AuditLog) -> None:
    log.append(some(0.01, *[D] * 20))
    done = prune(log, Retention(3600, 1, 3600, 1), now=NOW)
    assert done is not None
    assert done.count == 1  # that the log was started
    assert seqs(log) == list(range(1, 22))


def test_a_plan_changes_nothing(log: AuditLog) -> None:
    fill(log)
    before = seqs(log)
    with log.database.read() as connection:
        plan = plan_pruning(connection, ALL, NOW)
    assert plan is not None
    assert (plan.denials, plan.others) == (8, 3)
    assert seqs(log) == before


def test_the_log_goes_on_and_kept_entries_are_proved(log: AuditLog) -> None:
    fill(log)
    old = log.append(some(39, A))
    note_witness(log.database, "elsewhere", old)
    prune(log, ALL, now=NOW)
    prune(log, Retention(30 * DAY, 1, 3 * DAY, 1), now=NOW + 2 * DAY)
    newest = log.append(some(0, A, D))
    keys = log.signer.public_keys
    for seq in seqs(log):
        check_proof(prove_inclusion(log.database, keys, seq), keys)
    with pytest.raises(UsageError, match="entry 3 of the audit log was pruned; entry"):
        prove_inclusion(log.database, keys, 3)
    check_proof(prove_consistency(log.database, keys, old, newest), keys)
    verdict = verify(log.database, keys, kept=[old])
    assert verdict.ok, verdict.findings


def test_a_head_that_nobody_noted_cannot_be_connected_and_verification_says_so(
    log: AuditLog,
) -> None:
    log.append(some(40, D, A, D))
    old = log.append(some(39, A, D, D))
    log.append(some(20, *[D] * 10))
    prune(log, Retention(3 * DAY, 10**6, 3 * DAY, 10**6), now=NOW + 4 * DAY)
    verdict = verify(log.database, log.signer.public_keys, kept=[old])
    assert "cannot be told: entries before" in verdict.findings[0].message


@pytest.mark.parametrize("before", [0, 5, 13])
def test_without_a_checkpoint_in_the_log_nothing_is_deleted(log: AuditLog, before: int) -> None:
    fill(log)
    everything = sa.delete(entries)
    with pytest.raises(DBAPIError, match="append-only"), log.database.write() as connection:
        connection.execute(everything)
    # Not even with a row that claims one: its entry has to be there, and tell of a pruning.
    with log.database.write() as connection:
        connection.execute(sa.insert(pruned).values(id=1, before=before, entry=before))
    some_of_them = sa.delete(entries).where(entries.c.seq <= before)
    with pytest.raises(DBAPIError, match="append-only"), log.database.write() as connection:
        connection.execute(some_of_them)
    with log.database.write() as connection:
        connection.execute(sa.delete(pruned))
    prune(log, ALL, now=NOW)
    with pytest.raises(DBAPIError, match="append-only"), log.database.write() as connection:
        connection.execute(sa.delete(entries).where(entries.c.seq >= 13))
    with pytest.raises(DBAPIError, match="append-only"), log.database.write() as connection:
        connection.execute(sa.update(entries).values(kind="y"))
    assert seqs(log) == [8, 11, 13, 14, 15, 16]


def unguard(database: Database) -> None:
    names = ("guard", "guard_delete") if database.is_postgresql else ("no_update", "no_delete")
    on = " ON audit_entries" if database.is_postgresql else ""
    with database.write() as connection:
        for name in names:
            connection.execute(sa.text(f"DROP TRIGGER audit_entries_{name}{on}"))


def test_evidence_of_tampering_is_not_cleared_away(log: AuditLog) -> None:
    fill(log)
    unguard(log.database)
    with log.database.write() as connection:
        connection.execute(sa.update(entries).where(entries.c.seq == 3).values(kind="y"))
    with pytest.raises(TamperedError, match="so they are not pruned"):
        prune(log, ALL, now=NOW)
    assert len(seqs(log)) == 16


def test_what_is_kept_of_the_pruned_is_checked(log: AuditLog) -> None:
    fill(log)
    prune(log, ALL, now=NOW)
    with log.database.write() as connection:
        connection.execute(sa.update(nodes).values(hash=bytes(32)))
    assert not verify(log.database, log.signer.public_keys).ok


def test_an_unsigned_cut_is_found(log: AuditLog) -> None:
    fill(log)
    unguard(log.database)
    with log.database.write() as connection:
        connection.execute(sa.delete(entries).where(entries.c.seq < 7))
    verdict = verify(log.database, log.signer.public_keys)
    assert verdict.findings[0].message == "entry 0 is missing; 16 entries were signed"


def test_a_process_that_was_idle_goes_on_after_another_pruned(
    database: Database, tmp_path: Path
) -> None:
    secret = SecretFile(tmp_path / "signing.key")
    idle = AuditLog.open(database, secret)
    idle.append(some(40, D, D, D))
    busy = AuditLog.open(database, secret)
    busy.append(some(35, *[D] * 20))
    prune(busy, ALL, now=time.time() + 5 * DAY)
    # What it saw is pruned, but the head that the machine keeps is newer.
    assert load_head(anchor_path(secret.path)).size > 4
    assert idle.append(some(0, A)).size == 26
    assert verify(database, idle.signer.public_keys).ok


def test_a_machine_that_was_away_goes_on_after_another_pruned(
    database: Database, tmp_path: Path
) -> None:
    away, here = (SecretFile(tmp_path / name / "signing.key") for name in ("away", "here"))
    first = AuditLog.open(database, away)
    first.append(some(40, D, D, D))
    first.close()  # notes in the database which head is kept there
    here.path.parent.mkdir()
    for name in ("signing.key", "signing.pub"):
        (here.path.parent / name).write_bytes((away.path.parent / name).read_bytes())
    here.path.chmod(0o600)
    other = AuditLog.open(database, here)
    other.append(some(35, *[D] * 20))
    prune(other, Retention(3 * DAY, 10**6, 3 * DAY, 10**6), now=time.time() + 9 * DAY)
    assert AuditLog.open(database, away).append(some(0, A)).size == 26


def test_a_machine_that_ended_unnoticed_is_told_what_to_do(
    database: Database, tmp_path: Path
) -> None:
    secret = SecretFile(tmp_path / "signing.key")
    log = AuditLog.open(database, secret)
    log.append(some(40, D, D, D))
    kept = anchor_path(secret.path).read_bytes()
    log.append(some(35, *[D] * 20))
    prune(log, Retention(3 * DAY, 10**6, 3 * DAY, 10**6), now=time.time() + 9 * DAY)
    anchor_path(secret.path).write_bytes(kept)
    with pytest.raises(TamperedError, match=r"were pruned since .* remove the \.head file"):
        AuditLog.open(database, secret).append(some(0, A))
