"""How detection is kept: batches of steps, and snapshots of the state that they led to.

Rules that hold here:
- A batch is written when all gateways know of it: nothing is on record that another could
  contradict.
- A state as of a batch is stored after that batch, and never before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from penstock.clock import boot_clock
from penstock.errors import UnavailableError
from penstock.gateway.detection.journal import Snapshot
from penstock.gateway.detection.snapshots import ForkedSnapshot, fork_snapshot, pack_state, write
from penstock.store.detection import Batch, ClaimLostError, DetectionStore
from penstock.telemetry import get_logger

if TYPE_CHECKING:
    from penstock.gateway.detection.engine_host import EngineHost

_log = get_logger("gateway")


class Keeping:
    """What the journal of one gateway is kept by."""

    def __init__(
        self,
        detection: EngineHost,
        store: DetectionStore,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._detection = detection
        self._store = store
        self._run_in_thread = run_in_thread
        self._saving: asyncio.Task[None] | None = None

    async def write(self, batch: Batch, snapshot: Snapshot | None) -> None:
        """Write a batch durably, and after it a snapshot, when all gateways know of it."""
        await self._detection.leader.wait_replicated()
        asked = boot_clock()
        await self._run_in_thread(write, self._store, batch, snapshot)
        self._detection.claim.renew(asked)

    def snapshot(self) -> Snapshot | None:
        """Return the state after all that was added; None where there is none to save."""
        detection = self._detection
        engine = detection.engine
        if engine is None:
            return None
        try:
            state = pack_state(engine.save(), *detection.beside)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is made anew
            detection.crash(error)
            return None
        return Snapshot(state, list(engine.situations()))

    def fork_snapshot(self, number: int, ticket: int) -> None:
        """Begin to save the state as of a batch, of which this is the last ticket."""
        detection = self._detection
        engine, beside = detection.engine, detection.beside
        if engine is None or self._saving is not None:
            return
        child = fork_snapshot(lambda: pack_state(engine.save(), *beside))
        self._saving = asyncio.get_running_loop().create_task(self._keep(child, number, ticket))

    async def keep(
        self, state: bytes, number: int, standing: list[tuple[str, str, str, int]]
    ) -> None:
        """Store a state as of a batch, with the situations that hold in it."""
        await self._run_in_thread(self._store.keep, state, number, standing)

    async def finish(self, seconds: float) -> None:
        """Give what is being saved beside some time to end."""
        if self._saving is not None:
            await asyncio.wait([self._saving], timeout=seconds)

    async def _keep(self, child: ForkedSnapshot, number: int, ticket: int) -> None:
        try:
            data = await self._run_in_thread(child.read)
            if await self._detection.journal.reach(ticket):
                await self._run_in_thread(self._store.keep, data, number)
        except (UnavailableError, ClaimLostError) as error:
            _log.warning("a snapshot was not stored; the next one will be", error=error)
        finally:
            self._saving = None

    def written(self) -> None:
        """Take note that the store answers."""

    def failed(self, error: Exception) -> None:
        """Take note that the store does not answer, or that it is another's."""
        if isinstance(error, ClaimLostError):
            self._detection.invalidate("claim", "another gateway detects")
        elif not self._detection.claim.is_held:
            self._detection.invalidate("store", "the store does not answer")
