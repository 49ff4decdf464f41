from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from penstock.errors import UnavailableError
from penstock.gateway.detection.journal import Journal, Snapshot
from penstock.store.detection.journal import DetectedTransition, JournalBatch, LeaseLostError

STEP = DetectedTransition(0, "s", "p", None, "A", "E")


class Desk:
    """A backend that notes what is written, and fails when told to."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, bytes, int]] = []
        self.snapshots: list[int] = []
        self.forked: list[tuple[int, Awaitable[bool]]] = []
        self.failures: list[Exception] = []
        self.handled: list[str] = []

    async def write(self, batch: JournalBatch, snapshot: Snapshot | None) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.batches.append((batch.number, batch.data, len(batch.transitions)))
        if snapshot is not None:
            self.snapshots.append(batch.number)

    def snapshot(self) -> Snapshot | None:
        return Snapshot(b"state", [])

    def fork_snapshot(self, number: int, durable: Awaitable[bool]) -> None:
        self.forked.append((number, durable))

    def handle_failure(self, error: Exception) -> None:
        self.handled.append(type(error).__name__)


def test_what_is_added_in_one_step_is_written_together_and_in_order() -> None:
    async def run() -> None:
        desk = Desk()
        journal = Journal(desk, 1_000_000)
        tickets = [journal.add(b"%d" % number, [STEP]) for number in range(3)]
        told: list[bool] = []
        journal.wait(tickets[2], told.append)
        assert told == []
        assert await journal.reach(tickets[2])
        assert told == [True]
        assert journal.durable == tickets[2]
        journal.wait(tickets[0], told.append)
        assert told == [True, True]
        journal.add(b"3")
        await journal.finish()
        assert desk.batches == [(1, b"0\n1\n2", 3), (2, b"3", 0)]

    asyncio.run(run())


def test_a_store_that_fails_is_tried_again() -> None:
    async def run() -> None:
        desk = Desk()
        desk.failures = [UnavailableError("down")]
        journal = Journal(desk, 1_000_000)
        assert await journal.reach(journal.add(b"kept"))
        assert desk.batches == [(1, b"kept", 0)]
        assert desk.handled == ["UnavailableError"]

    asyncio.run(run())


def test_what_another_has_taken_over_is_given_up_and_told() -> None:
    async def run() -> None:
        desk = Desk()
        desk.failures = [LeaseLostError("gone")]
        journal = Journal(desk, 1_000_000)
        assert not await journal.reach(journal.add(b"lost"))
        assert desk.batches == []
        assert await journal.reach(journal.add(b"new"))
        assert desk.batches == [(2, b"new", 0)]

    asyncio.run(run())


def test_a_snapshot_is_taken_when_enough_was_written() -> None:
    async def run() -> None:
        desk = Desk()
        journal = Journal(desk, 10)
        for number in range(1, 7):
            await journal.reach(journal.add(b"12345"))
            assert [it for it, _ in desk.forked] == [it for it in (2, 4, 6) if it <= number]
            assert all([await durable for _, durable in desk.forked])
        assert desk.snapshots == []
        journal.snapshot_due = True
        await journal.reach(journal.add())
        assert desk.snapshots == [7]

    asyncio.run(run())
