"""Sees to it that events are detected: here, or by another gateway that is joined.

    idle ──▶ claims ──▶ loads ──▶ detects ──▶ crashed, stalled, claimed by another ──▶ claims
               │ ▲                   └──▶ looks after: renews the claim
               │ └── that is gone
               └──▶ another has it ──▶ joins it

Rules that hold here:
- Who detects is one question with one answer: the process that holds the claim.
- Before it begins nothing of an earlier time is under way any more.
- Whatever goes wrong is tried again; until it goes well, detection is lost.
"""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.errors import UnavailableError
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.detection.snapshots import rebuild
from penstock.store.detection import ClaimLostError, DetectionStore, Detector
from penstock.telemetry import get_logger

_LONGEST_PAUSE: Final = 3600.0
_LOOK_SECONDS: Final = 0.5
_SEARCH_SECONDS: Final = 0.1
"""How often it is looked for who detects, while messages may wait for that."""
_log = get_logger("gateway")


class LeaderElection:
    """The life of one gateway's detection."""

    def __init__(self, detection: EngineHost, store: DetectionStore) -> None:
        self._detection = detection
        self._store = store
        self._started = asyncio.Event()
        detection.leader.announce = self._announce

    async def run(self) -> None:
        """Detect whenever there is something to detect and nobody else does."""
        detection = self._detection
        while not detection.stopping:
            detection.news.clear()
            try:
                if not detection.wanted:
                    await self._rest()
                elif detection.engine is None:
                    await self._begin()
                else:
                    await self._look_after()
            except UnavailableError as error:
                detection.keeping.failed(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                _log.exception("detection could not begin", error=error)
                detection.invalidate("state", "its state cannot be taken up")
            self._started.set()
            try:
                async with asyncio.timeout(self._pause()):
                    await detection.news.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        detection = self._detection
        if not detection.wanted:
            return _LONGEST_PAUSE
        searches = detection.engine is None and detection.trouble
        return _SEARCH_SECONDS if searches else _LOOK_SECONDS

    async def wait_started(self, seconds: float) -> None:
        """Wait until it was tried to begin."""
        try:
            async with asyncio.timeout(seconds):
                await self._started.wait()
        except TimeoutError:
            _log.warning("detection has not begun in time")

    async def stop(self) -> None:
        """Detect no longer; another gateway may."""
        detection = self._detection
        detection.stopping = True
        detection.leader.close()
        detection.follower.leave("the gateway ends")
        detection.follower.give_up()
        await self._hand_over()

    async def _hand_over(self) -> None:
        """Write a last snapshot and give the claim back."""
        detection = self._detection
        journal, claim = detection.journal, detection.claim
        detection.silence()
        await detection.keeping.finish(claim.lease)
        await detection.reload.finish()
        if detection.is_alive():
            journal.snapshot_due = True
            journal.add()
            try:
                async with asyncio.timeout(claim.lease):
                    await journal.finish()
                    await claim.release()
            except (TimeoutError, UnavailableError, ClaimLostError) as error:
                _log.warning("the last state was not stored", error=error)

    async def _rest(self) -> None:
        """Do without: there is nothing to detect."""
        detection = self._detection
        if detection.engine is not None:
            detection.leader.dismiss("nothing is to be detected")
            await self._hand_over()
            detection.rest()
        if not detection.wanted:
            detection.follower.leave("nothing is to be detected")
            detection.trouble = ""
            detection.board.fill(())

    async def _begin(self) -> None:
        """Detect, or join who does."""
        detection = self._detection
        if detection.follower.joined:
            return
        await detection.reload.finish()
        await detection.journal.finish()
        if not await self._take_claim():
            return
        program = detection.program
        work = asyncio.ensure_future(detection.run_in_thread(rebuild, self._store, program))
        while not (await asyncio.wait({work}, timeout=detection.claim.pause))[0]:
            await self._take_claim()
        rebuilt = work.result()
        if program is not detection.program:
            detection.news.set()
        elif await self._take_claim():
            detection.start(rebuilt)

    async def _look_after(self) -> None:
        """Renew the claim while nothing is written."""
        self._detection.look()
        if self._detection.is_alive() and self._detection.claim.is_due:
            await self._take_claim()

    async def _take_claim(self) -> bool:
        """Take or renew the claim; False where another has it."""
        detection = self._detection
        other = await detection.claim.take()
        if other is None:
            return True
        if detection.engine is not None:
            detection.invalidate("claim", f"another gateway detects: {other.place or 'elsewhere'}")
        await self._join(other)
        return False

    async def _join(self, other: Detector) -> None:
        """Know what another gateway detects."""
        detection = self._detection
        where = f"another gateway detects: {other.place or 'elsewhere'}"
        if not other.address:
            detection.follower.give_up()
            detection.invalidate("claim", where)
            return
        trouble = await detection.follower.join(other.address, detection.claim.lease)
        if trouble:
            detection.invalidate("link", f"{where}; {trouble}")
        elif detection.follower.joined:
            detection.trouble = ""
            _log.info("events are detected by another gateway")

    async def _announce(self, seconds: float) -> None:
        await self._detection.run_in_thread(self._store.announce, seconds)
