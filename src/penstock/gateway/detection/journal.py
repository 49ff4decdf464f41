"""The journal of detection: steps in their order, written together, each told when durable.

    add ──▶ waiting ──▶ one batch at a time ──▶ store ──▶ durable ──▶ who waits for it
                                                  └── fails: kept, tried again

Rules that hold here:
- What is added in one step of the loop is written in one transaction.
- At most one transaction runs at a time, and none begins less than some milliseconds after
  the one before: what comes meanwhile goes into the next. So thousands of steps a second
  cost a hundred transactions.
- What has become long is cut short by a snapshot, which is saved beside while steps go on.
- Nothing that was added is given up while the store does not answer. Where another gateway
  has taken over, it is: whoever waits is told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.errors import UnavailableError
from penstock.store.detection import Batch, ClaimLostError, Step
from penstock.telemetry import get_logger

PAUSE_SECONDS: Final = 0.01
RETRY_SECONDS: Final = 0.5
_log = get_logger("gateway")

Settled = Callable[[bool], None]
"""Called with whether what was waited for is durable."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as of the batch that it is written after."""

    data: bytes
    standing: list[tuple[str, str, str, int]]


class Keeper(Protocol):
    """Who owns the journal, and where it is written."""

    async def write(self, batch: Batch, snapshot: Snapshot | None) -> None:
        """Write a batch durably, and after it a snapshot."""

    def snapshot(self) -> Snapshot | None:
        """Return the state after all that was added; None where there is none to save."""

    def fork_snapshot(self, number: int, ticket: int) -> None:
        """Begin to save the state as of a batch, of which this is the last ticket."""

    def written(self) -> None:
        """Take note that the store answers."""

    def failed(self, error: Exception) -> None:
        """Take note that the store does not answer, or that it is another's."""


class Journal:
    """The steps of one gateway on their way to the store."""

    def __init__(self, keeper: Keeper, snapshot_bytes: int) -> None:
        self.number = 0
        """Of the last batch."""
        self.added = 0
        self.durable = 0
        """The last ticket that is durable, or was given up when its waiters were told."""
        self.snapshot_due = False
        self._keeper = keeper
        self._limit = snapshot_bytes
        self._size = 0
        self._records: list[bytes] = []
        self._steps: list[Step] = []
        self._settled: list[tuple[str, str]] = []
        self._waiting: deque[tuple[int, Settled]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0

    @property
    def busy(self) -> bool:
        """Whether something is not durable yet."""
        return self._task is not None

    def add(
        self,
        record: bytes = b"",
        steps: Iterable[Step] = (),
        settled: Iterable[tuple[str, str]] = (),
    ) -> int:
        """Add a step; return the ticket to `wait` with."""
        if record:
            self._records.append(record)
            self._size += len(record) + 1
        self._steps += steps
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

    async def reach(self, ticket: int) -> bool:
        """Wait until a ticket is durable; False where it never will be."""
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(durable: bool) -> None:  # noqa: FBT001
            if not reached.done():
                reached.set_result(durable)

        self.wait(ticket, settle)
        return await reached

    async def finish(self) -> None:
        """Wait until all is written, or given up."""
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
        batch = Batch(self.number, b"\n".join(self._records), self._steps, self._settled)
        self._records, self._steps, self._settled = [], [], []
        snapshot = None
        # In this very step: the state is the one after this batch.
        if self.snapshot_due:
            snapshot = self._keeper.snapshot()
            self.snapshot_due = False
            self._size = 0
        elif self._size > self._limit:
            self._keeper.fork_snapshot(self.number, ticket)
            self._size = 0
        written = await self._write(lambda: self._keeper.write(batch, snapshot))
        if not written:
            ticket = self.added
            self._records, self._steps, self._settled = [], [], []
        self.durable = ticket
        self._tell(durable=written)

    async def _write(self, write: Callable[[], Awaitable[None]]) -> bool:
        """Write until it is done; False where it is no longer ours to do."""
        while True:
            try:
                await write()
            except ClaimLostError as error:
                self._keeper.failed(error)
                return False
            except UnavailableError as error:
                self._keeper.failed(error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._keeper.written()
                return True

    def _tell(self, *, durable: bool) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= self.durable:
            waiting.popleft()[1](durable)
