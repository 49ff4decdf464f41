"""The journal of detection, a write-ahead log of steps, and the outbox that it restores.

    add ──▶ queued ──▶ one batch at a time ──▶ store ──▶ durable ──▶ callbacks
                                                 └── fails: kept, retried

    put ──▶ fresh: not detected yet ──▶ detected, to be sent ──▶ settled: sent, or given up

Rules that hold here:
- What is added in one step of the loop is written in one transaction.
- At most one transaction runs at a time, and none begins less than some milliseconds after
  the one before: what is added meanwhile goes into the next batch. So thousands of steps a
  second cost a hundred transactions.
- When the journal has grown by `snapshot_bytes`, a snapshot is forked while steps go on.
- Batches are retried while the store does not answer. Where the lease is lost they are dropped,
  and the callbacks get False.
- Publications are numbered in order. The order follows from the steps alone: a replay gives the
  same numbers.
- The journal has for each number that it was detected, and that it is settled. After a restart
  fresh publications are detected, once, and those that are not settled are sent, at least once.
- A detected publication leads no further: it is kept with the depth 0, which no other has.
- `publishing.actions` limits how many may wait. What it gives up is settled in the journal, too,
  so that a replay decides nothing anew.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from penstock.cep.steps import Publication
from penstock.errors import UnavailableError
from penstock.store.detection.journal import DetectedTransition, JournalBatch, LeaseLostError
from penstock.telemetry import get_logger

PAUSE_SECONDS: Final = 0.01
RETRY_SECONDS: Final = 0.5
_log = get_logger("gateway")

Settled = Callable[[bool], None]
"""Called with whether what was waited for is durable."""


class Snapshot(NamedTuple):
    """A state as of the batch that it is written after, and the situations that hold in it."""

    data: bytes
    situations: list[tuple[str, str, str, int]]


class JournalBackend(Protocol):
    """Where the journal is written."""

    async def write(self, batch: JournalBatch, snapshot: Snapshot | None) -> None:
        """Write a batch durably, and after it a snapshot."""

    def snapshot(self) -> Snapshot | None:
        """Return the state after all that was added; None where there is none."""

    def fork_snapshot(self, number: int, durable: Awaitable[bool]) -> None:
        """Start to save the state as of a batch, which `durable` waits for."""

    def handle_failure(self, error: Exception) -> None:
        """Note that the store does not answer, or that the lease is lost."""


class Journal:
    """The steps of one gateway on their way to the store."""

    def __init__(self, backend: JournalBackend, snapshot_bytes: int) -> None:
        self.number = 0
        """Of the last batch."""
        self.added = 0
        self.durable = 0
        """The last ticket that is durable, or was dropped."""
        self.snapshot_due = False
        self._backend = backend
        self._limit = snapshot_bytes
        self._size = 0
        self._records: list[bytes] = []
        self._transitions: list[DetectedTransition] = []
        self._settled: list[tuple[str, str]] = []
        self._waiting: deque[tuple[int, Settled]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0

    def add(
        self,
        record: bytes = b"",
        transitions: Iterable[DetectedTransition] = (),
        settled: Iterable[tuple[str, str]] = (),
    ) -> int:
        """Add a step; return the ticket to `wait` with."""
        if record:
            self._records.append(record)
            self._size += len(record) + 1
        self._transitions += transitions
        self._settled += settled
        self.added += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self.added

    def wait(self, ticket: int, settled: Settled) -> None:
        """Call back when a ticket is durable, or never will be."""
        if ticket <= self.durable:
            settled(True)  # noqa: FBT003
        else:
            self._waiting.append((ticket, settled))

    def reach(self, ticket: int) -> asyncio.Future[bool]:
        """Return a future: whether a ticket has become durable; False where it never will."""
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(durable: bool) -> None:  # noqa: FBT001
            if not reached.done():
                reached.set_result(durable)

        self.wait(ticket, settle)
        return reached

    async def finish(self) -> None:
        """Wait until all is written, or dropped."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self.durable < self.added:
                pause = self._last + PAUSE_SECONDS - loop.time()
                if pause > 0:
                    await asyncio.sleep(pause)
                self._last = loop.time()
                await self._write_all()
        finally:
            self._task = None

    async def _write_all(self) -> None:
        ticket = self.added
        self.number += 1
        batch = JournalBatch(
            self.number, b"\n".join(self._records), self._transitions, self._settled
        )
        self._records, self._transitions, self._settled = [], [], []
        snapshot = None
        # In this very step: the state is the one after this batch.
        if self.snapshot_due:
            snapshot = self._backend.snapshot()
            self.snapshot_due = False
            self._size = 0
        elif self._size > self._limit:
            self._backend.fork_snapshot(self.number, self.reach(ticket))
            self._size = 0
        written = await self._write(batch, snapshot)
        if not written:
            ticket = self.added
            self._records, self._transitions, self._settled = [], [], []
        self.durable = ticket
        self._call_back(durable=written)

    async def _write(self, batch: JournalBatch, snapshot: Snapshot | None) -> bool:
        """Retry a write until it is done; False where the lease is lost."""
        while True:
            try:
                await self._backend.write(batch, snapshot)
            except LeaseLostError as error:
                self._backend.handle_failure(error)
                return False
            except UnavailableError as error:
                self._backend.handle_failure(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return True

    def _call_back(self, *, durable: bool) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.durable:
            waiting.popleft()[1](durable)


_DONE: Final = b"#done "
_DETECTED: Final = b"#detected "


class Outbox:
    """The publications of actions that are not settled."""

    def __init__(self) -> None:
        self.waiting: dict[int, Publication] = {}
        self.last = 0

    def put(self, publications: Iterable[Publication]) -> None:
        """Add publications, in their order."""
        for publication in publications:
            self.last += 1
            self.waiting[self.last] = publication

    def fresh(self) -> list[int]:
        """Return the numbers of those that were not detected."""
        return [number for number, it in self.waiting.items() if it.depth]

    def detected(self) -> list[int]:
        """Return the numbers of those that were detected, and so are to be sent."""
        return [number for number, it in self.waiting.items() if not it.depth]

    def pass_on(self, numbers: Sequence[int]) -> bytes:
        """Mark some, in their order, as detected; return the line for the journal."""
        self._pass_on(numbers)
        return _DETECTED + b"%d-%d" % (numbers[0], numbers[-1])

    def settle(self, numbers: Iterable[int]) -> bytes:
        """Settle some; return the line for the journal."""
        done = list(numbers)
        for number in done:
            self.waiting.pop(number, None)
        return _DONE + ",".join(map(str, done)).encode()

    def replay(self, line: bytes) -> bool:
        """Replay a line of the journal, if it is about the outbox."""
        if line.startswith(_DONE):
            for number in line[len(_DONE) :].split(b","):
                self.waiting.pop(int(number), None)
        elif line.startswith(_DETECTED):
            first, _, last = line[len(_DETECTED) :].partition(b"-")
            self._pass_on(range(int(first), int(last) + 1))
        else:
            return False
        return True

    def _pass_on(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.waiting:
                self.waiting[number] = replace(self.waiting[number], depth=0)
