import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UnavailableError
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.reader import newest_head, read_after
from penstock.store.audit.signatures import (
    AuditFullError,
    AuditStoppedError,
    Head,
    Signer,
    TamperedError,
    UncertainAppendError,
)
from penstock.store.audit.verification import verify
from penstock.store.audit.writer import AuditWriter
from penstock.store.database import Database


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AuditLog]:
    with Database.open(f"sqlite:///{tmp_path}/penstock.db") as database:
        yield AuditLog(database, Signer.generate())


class TroubledLog(AuditLog):
    """A log whose appends can be held up, or fail before or behind the commit."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, Signer.generate())
        self.go = threading.Event()
        self.go.set()
        self.before: list[Exception] = []
        self.behind: list[Exception] = []
        self.batches: list[int] = []

    def append(self, entries: Sequence[Entry]) -> Head:
        assert self.go.wait(30)
        if self.before:
            raise self.before.pop()
        head = super().append(entries)
        if self.behind:
            self.behind.pop()
            raise UncertainAppendError(head.size, head.root)
        self.batches.append(len(entries))
        return head


@pytest.fixture
def troubled(log: AuditLog) -> TroubledLog:
    return TroubledLog(log.database)


def entry(number: int = 0) -> Entry:
    return Entry.make("x", Outcome.DONE, count=number)


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def counts(log: AuditLog) -> list[str]:
    with log.database.read() as connection:
        return [one.entry.details for one in read_after(connection, 0)]


def test_what_was_waited_for_is_durable(log: AuditLog) -> None:
    with closing(AuditWriter(log, delay=30)) as writer:
        ticket = writer.submit(entry())
        writer.wait(ticket)
        head = newest_head(log.database)
        assert head is not None
        assert head.size == 2


def test_entries_keep_their_order_and_come_in_batches(troubled: TroubledLog) -> None:
    troubled.go.clear()
    with closing(AuditWriter(troubled, batch=10, delay=0)) as writer:
        for number in range(35):
            writer.submit(entry(number))
        troubled.go.set()
        writer.flush()
    assert counts(troubled) == [f'{{"count":{number}}}' for number in range(35)]
    assert len(troubled.batches) <= 5
    assert max(troubled.batches) == 10


def test_the_delay_gathers_entries(troubled: TroubledLog) -> None:
    with closing(AuditWriter(troubled, batch=5, delay=30)) as writer:
        for number in range(5):
            writer.submit(entry(number))
        eventually(lambda: troubled.batches)
    assert troubled.batches == [5], "a full batch does not wait for the delay"


def test_closing_writes_what_is_left(log: AuditLog) -> None:
    writer = AuditWriter(log, delay=30)
    for number in range(7):
        writer.submit(entry(number))
    writer.close()
    assert len(counts(log)) == 7
    assert verify(log.database, log.signer.public_keys).ok


def test_a_full_queue_refuses_at_once(troubled: TroubledLog) -> None:
    troubled.go.clear()
    writer = AuditWriter(troubled, capacity=3, delay=0)
    for _ in range(3):
        writer.submit(entry())
    with pytest.raises(AuditFullError, match="3 audit entries wait"):
        writer.submit(entry())
    assert writer.check() == "the queue of the audit writer is full"
    troubled.go.set()
    writer.close()
    assert len(counts(troubled)) == 3


def test_what_was_done_finds_room_behind_denials_and_grants(troubled: TroubledLog) -> None:
    troubled.go.clear()
    writer = AuditWriter(troubled, capacity=20, delay=0)
    taken: list[int] = []
    for outcome in (Outcome.DENIED, Outcome.ALLOWED, Outcome.DONE):
        before = len(taken)
        while True:
            try:
                taken.append(writer.submit(Entry.make("x", outcome, count=before)))
            except AuditFullError:
                break
    troubled.go.set()
    writer.close()
    expected = [0] * 16 + [16] * 2 + [18] * 2
    assert counts(troubled) == [f'{{"count":{it}}}' for it in expected]


def test_a_full_queue_blocks_for_its_time(troubled: TroubledLog) -> None:
    troubled.go.clear()
    writer = AuditWriter(troubled, capacity=1, delay=0)
    writer.submit(entry())
    started = time.monotonic()
    with pytest.raises(AuditFullError):
        writer.submit(entry(), timeout=0.05)
    assert time.monotonic() - started >= 0.05
    threading.Timer(0.05, troubled.go.set).start()
    writer.submit(entry(), timeout=20)
    writer.close()
    assert len(counts(troubled)) == 2


def test_many_threads_submit_to_a_small_queue(log: AuditLog) -> None:
    with closing(AuditWriter(log, capacity=20, batch=7, delay=0)) as writer:

        def run() -> None:
            for number in range(50):
                writer.submit(entry(number), timeout=30)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(counts(log)) == 200
    assert verify(log.database, log.signer.public_keys).ok


def test_an_outage_is_waited_out(troubled: TroubledLog) -> None:
    troubled.before = [UnavailableError("no database")] * 2
    with closing(AuditWriter(troubled, delay=0)) as writer:
        ticket = writer.submit(entry())
        eventually(lambda: writer.check() == "the audit log cannot be written: UnavailableError")
        writer.wait(ticket)
        assert writer.check() is None
    assert len(counts(troubled)) == 1


def test_a_wait_that_takes_too_long_says_so(troubled: TroubledLog) -> None:
    troubled.go.clear()
    with closing(AuditWriter(troubled, delay=0)) as writer:
        ticket = writer.submit(entry())
        with pytest.raises(UnavailableError, match=r"not written within 0\.02 s"):
            writer.wait(ticket, timeout=0.02)
        troubled.go.set()


def test_a_commit_in_doubt_that_was_made_is_not_made_twice(troubled: TroubledLog) -> None:
    troubled.behind = [RuntimeError()]
    with closing(AuditWriter(troubled, delay=0)) as writer:
        writer.wait(writer.submit(entry(1)))
        writer.wait(writer.submit(entry(2)))
    assert counts(troubled) == ['{"count":1}', '{"count":2}']


def test_a_commit_in_doubt_that_was_not_made_is_made(troubled: TroubledLog) -> None:
    troubled.before = [UncertainAppendError(2, bytes(32))]
    with closing(AuditWriter(troubled, delay=0)) as writer:
        writer.wait(writer.submit(entry(1)))
    assert counts(troubled) == ['{"count":1}']


def test_tampering_ends_the_writer(troubled: TroubledLog) -> None:
    troubled.before = [TamperedError("changed")]
    writer = AuditWriter(troubled, delay=0)
    ticket = writer.submit(entry())
    with pytest.raises(AuditStoppedError, match="ended: TamperedError"):
        writer.wait(ticket)
    with pytest.raises(AuditStoppedError, match="ended: TamperedError"):
        writer.submit(entry())
    assert writer.check() == "the audit writer has ended"
    with pytest.raises(AuditStoppedError, match="1 audit entries could not be written"):
        writer.close()


def test_entries_that_cannot_be_written_before_the_end_are_counted(troubled: TroubledLog) -> None:
    troubled.before = [UnavailableError("no database")] * 1000
    writer = AuditWriter(troubled, delay=0)
    for _ in range(3):
        writer.submit(entry())
    with pytest.raises(AuditStoppedError, match="3 audit entries could not be written"):
        writer.close(timeout=0.2)


def test_nothing_is_taken_behind_the_end(log: AuditLog) -> None:
    writer = AuditWriter(log)
    writer.close()
    with pytest.raises(AuditStoppedError, match="has ended"):
        writer.submit(entry())


def test_who_waits_for_room_is_told_of_the_end(troubled: TroubledLog) -> None:
    troubled.go.clear()
    troubled.before = [TamperedError("changed")]
    writer = AuditWriter(troubled, capacity=1, delay=0)
    writer.submit(entry())
    threading.Timer(0.05, troubled.go.set).start()
    with pytest.raises(AuditStoppedError):
        writer.submit(entry(), timeout=20)
