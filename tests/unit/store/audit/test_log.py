import threading
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from penstock.config.secrets import SecretFile
from penstock.errors import UsageError
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import BATCH_LIMIT, AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.audit.reader import (
    Filter,
    Recorded,
    entries,
    heads,
    newest_head,
    read_after,
    read_heads,
    read_last,
    read_tip,
    tip,
)
from penstock.store.audit.signatures import Head, Signer, TamperedError, anchor_path, load_head
from penstock.store.audit.verification import verify
from penstock.store.database import Database

PEOPLE = Pseudonyms(b"k" * 32)
MINUTE = 60 * 10**9


def some(
    count: int, kind: str = "decision.read", outcome: Outcome = Outcome.ALLOWED
) -> list[Entry]:
    return [
        Entry.make(kind, outcome, actor=PEOPLE.person(f"person {number % 3}"), count=number)
        for number in range(count)
    ]


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000 * 10**9

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(database: Database, clock: Clock) -> AuditLog:
    return AuditLog(database, Signer.generate(), clock=clock)


def everything(database: Database) -> list[Recorded]:
    with database.read() as connection:
        return read_after(connection, -1)


def test_entries_are_numbered_without_gaps_behind_a_first_one(log: AuditLog) -> None:
    log.append(some(3))
    head = log.append(some(2))
    found = everything(log.database)
    assert [one.seq for one in found] == [0, 1, 2, 3, 4, 5]
    assert found[0].entry.kind == "audit.started"
    assert [one.entry for one in found[1:4]] == some_times(found[1:4], 3)
    assert head.size == 6
    assert newest_head(log.database) == head
    log.signer.public_keys.check(head)


def some_times(found: list[Recorded], count: int) -> list[Entry]:
    """The sample entries with the times at which they were really made."""
    return [
        Entry.make(
            "decision.read",
            Outcome.ALLOWED,
            actor=PEOPLE.person(f"person {number % 3}"),
            count=number,
            at=one.entry.time,
        )
        for number, one in zip(range(count), found, strict=True)
    ]


def test_an_empty_log_has_no_head_and_verifies(log: AuditLog) -> None:
    assert newest_head(log.database) is None
    verdict = verify(log.database, log.signer.public_keys)
    assert (verdict.ok, verdict.size) == (True, 0)


def test_every_append_is_covered_by_the_newest_head(log: AuditLog) -> None:
    for count in (1, 2, 3, 5, 8, 13):
        log.append(some(count))
        verdict = verify(log.database, log.signer.public_keys)
        assert verdict.ok, verdict.findings
    assert verdict.size == 33


def test_two_logs_never_share_a_root(log: AuditLog, tmp_path: Path) -> None:
    entry = Entry.make("x", Outcome.DONE, at=1)
    with Database.open(f"sqlite:///{tmp_path}/other.db") as other:
        assert AuditLog(other, log.signer).append([entry]).root != log.append([entry]).root


@pytest.mark.parametrize("count", [0, BATCH_LIMIT + 1])
def test_batches_have_limits(log: AuditLog, count: int) -> None:
    with pytest.raises(UsageError, match=f"cannot append {count} entries"):
        log.append([Entry.make("x", Outcome.DONE)] * count)


def test_older_heads_are_kept_once_a_minute(log: AuditLog, clock: Clock) -> None:
    for _ in range(4):
        log.append(some(1))
        clock.now += MINUTE // 2
    with log.database.read() as connection:
        assert [head.size for head in read_heads(connection)] == [2, 4]
        assert read_tip(connection).size == 5


def test_the_time_of_heads_never_goes_back(log: AuditLog, clock: Clock) -> None:
    first = log.append(some(1))
    clock.now -= MINUTE
    assert log.append(some(1)).time == first.time


def test_an_append_inside_a_transaction_is_undone_with_it(log: AuditLog) -> None:
    log.append(some(1))

    def fail() -> None:
        with log.database.write() as connection:
            log.append_within(connection, some(5))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(everything(log.database)) == 2
    with log.database.write() as connection:
        log.append_within(connection, some(5))
    assert len(everything(log.database)) == 7
    log.append(some(1))
    assert verify(log.database, log.signer.public_keys).ok


def test_entries_cannot_be_changed_by_mistake(log: AuditLog) -> None:
    log.append(some(1))
    for statement in (sa.update(entries).values(kind="other"), sa.delete(entries)):
        with pytest.raises(DBAPIError, match="append-only"), log.database.write() as connection:
            connection.execute(statement)
    assert len(everything(log.database)) == 2


def test_reading_with_filters(log: AuditLog) -> None:
    log.append(some(6))
    log.append(some(2, "definitions.apply", Outcome.DENIED))
    with log.database.read() as connection:

        def seqs(only: Filter, limit: int = 100) -> list[int]:
            return [one.seq for one in read_last(connection, limit, only)]

        assert seqs(Filter()) == list(range(9))
        assert seqs(Filter(), 2) == [7, 8]
        assert seqs(Filter(kinds=["definitions.apply"])) == [7, 8]
        assert seqs(Filter(outcomes=[Outcome.DONE, Outcome.DENIED])) == [0, 7, 8]
        assert seqs(Filter(people=PEOPLE.all_of("person 1"))) == [2, 5, 8]
        assert seqs(Filter(people=PEOPLE.all_of("nobody"))) == []
        assert [one.seq for one in read_after(connection, 3, 2)] == [4, 5]


def test_threads_append_without_gaps(log: AuditLog) -> None:
    def run() -> None:
        for _ in range(5):
            log.append(some(3))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verdict = verify(log.database, log.signer.public_keys)
    assert (verdict.ok, verdict.size) == (True, 61)


# --- never sign what was not signed before -----------------------------------------------


def test_a_changed_root_is_not_signed_over(log: AuditLog) -> None:
    log.append(some(3))
    with log.database.write() as connection:
        connection.execute(sa.update(tip).values(root=bytes(32)))
    with pytest.raises(TamperedError, match="signature of the head"):
        log.append(some(1))


def test_a_changed_edge_is_not_signed_over(log: AuditLog) -> None:
    log.append(some(3))
    for edge in (bytes(32), bytes(64), b""):
        with log.database.write() as connection:
            connection.execute(sa.update(tip).values(frontier=edge))
        with pytest.raises(TamperedError, match="right edge"):
            log.append(some(1))


def test_a_missing_tip_is_not_replaced(log: AuditLog) -> None:
    log.append(some(3))
    with log.database.write() as connection:
        connection.execute(sa.delete(tip))
    with pytest.raises(TamperedError, match="tip of the audit log is missing"):
        log.append(some(1))


def test_a_log_of_a_foreign_key_is_not_continued(log: AuditLog) -> None:
    log.append(some(3))
    with pytest.raises(TamperedError, match="not known"):
        AuditLog(log.database, Signer.generate()).append(some(1))


def set_back(database: Database, to: Head) -> None:
    """Set the log back to an older head, as somebody who holds the database could."""
    edge = b"".join(
        one.hashes[-32:] for one in everything(database) if one.seq in peaks_of(to.size)
    )
    with database.write() as connection:
        drop_guards(database, connection)
        connection.execute(sa.delete(entries).where(entries.c.seq >= to.size))
        connection.execute(sa.delete(heads).where(heads.c.size > to.size))
        connection.execute(
            sa.update(tip).values(
                size=to.size,
                root=to.root,
                time=to.time,
                key=to.key,
                signature=to.signature,
                frontier=edge,
            )
        )


def peaks_of(size: int) -> list[int]:
    found, start = [], 0
    for level in reversed(range(size.bit_length())):
        if size >> level & 1:
            start += 1 << level
            found.append(start - 1)
    return found


def drop_guards(database: Database, connection: sa.Connection) -> None:
    if database.is_postgresql:
        connection.execute(sa.text("DROP TRIGGER audit_entries_guard ON audit_entries"))
        connection.execute(sa.text("DROP TRIGGER audit_entries_guard_delete ON audit_entries"))
    else:
        connection.execute(sa.text("DROP TRIGGER audit_entries_no_update"))
        connection.execute(sa.text("DROP TRIGGER audit_entries_no_delete"))


def test_a_log_that_was_set_back_is_not_continued_by_who_saw_more(log: AuditLog) -> None:
    older = log.append(some(5))
    log.append(some(5))
    set_back(log.database, older)
    with pytest.raises(TamperedError, match="does not extend what it was at size 11"):
        log.append(some(1))


def test_a_log_that_was_set_back_and_continued_by_another_is_noticed(log: AuditLog) -> None:
    older = log.append(some(5))
    log.append(some(5))
    set_back(log.database, older)
    AuditLog(log.database, log.signer).append(some(9))
    with pytest.raises(TamperedError, match="does not extend what it was at size 11"):
        log.append(some(1))


def test_another_process_may_append_in_between(log: AuditLog) -> None:
    other = AuditLog(log.database, log.signer)
    for _ in range(3):
        log.append(some(2))
        other.append(some(3))
    assert verify(log.database, log.signer.public_keys).size == 16


# --- the anchor ----------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path) -> SecretFile:
    return SecretFile(tmp_path / "keys" / "audit-signing.key")


def test_the_newest_head_is_kept_beside_the_key(database: Database, secret: SecretFile) -> None:
    log = AuditLog.open(database, secret)
    log.append(some(1))
    head = log.append(some(1))
    log.close()
    assert load_head(anchor_path(secret.path)) == head


def test_what_was_appended_within_a_transaction_is_anchored_if_it_was_committed(
    database: Database, secret: SecretFile
) -> None:
    log = AuditLog.open(database, secret)
    with database.write() as connection:
        head = log.append_within(connection, some(3))
    log.close()
    assert load_head(anchor_path(secret.path)) == head

    def fail() -> None:
        with database.write() as connection:
            log.append_within(connection, some(3))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    log.close()
    assert load_head(anchor_path(secret.path)) == head


def test_after_a_restart_a_log_that_was_set_back_is_noticed(
    database: Database, secret: SecretFile
) -> None:
    first = AuditLog.open(database, secret)
    older = first.append(some(5))
    first.append(some(5))
    first.close()
    set_back(database, older)
    with pytest.raises(TamperedError, match="does not extend") as raised:
        AuditLog.open(database, secret).append(some(1))
    assert ".head file" in str(raised.value)
    anchor_path(secret.path).unlink()
    assert AuditLog.open(database, secret).append(some(1)).size == 7


def test_a_forged_anchor_is_noticed(database: Database, secret: SecretFile) -> None:
    log = AuditLog.open(database, secret)
    log.append(some(1))
    log.close()
    path = anchor_path(secret.path)
    path.write_text(path.read_text().replace('"size": 2', '"size": 1'))
    with pytest.raises(TamperedError, match="signature"):
        AuditLog.open(database, secret)


def test_an_anchor_that_cannot_be_written_does_not_undo_the_append(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = AuditLog(database, Signer.generate(), anchor=tmp_path / "missing" / "x.head")
    assert log.append(some(1)).size == 2
    assert "cannot keep the newest head" in capsys.readouterr().err


# --- a commit in doubt -----------------------------------------------------------------------


def test_holds_tells_whether_a_batch_was_committed(log: AuditLog) -> None:
    head = log.append(some(3))
    assert log.holds(head.size, head.root)
    log.append(some(3))
    assert log.holds(head.size, head.root)
    assert not log.holds(head.size, bytes(32))
    assert not log.holds(1000, head.root)
