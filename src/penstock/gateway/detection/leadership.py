"""Leader election: this gateway detects, or follows who does; and what people ask of the leader.

    idle ──▶ acquires the lease ──▶ restores ──▶ leads ──▶ crashed, stalled, lease lost ──▶ acquires
               │ ▲                                └──▶ renews the lease
               │ └── the leader is lost
               └──▶ another holds it ──▶ follows

    `penstock situation` ──▶ store: ready ──▶ engine ──▶ journal ──▶ store: done, or failed and why
    erasure of a person ──▶ store: asked ──▶ reload without the person ──▶ store: settled

Rules that hold here:
- Who detects is one question with one answer: the process that holds the lease.
- Before it leads, nothing of an earlier term runs any more.
- Every failure is retried; until a retry succeeds, no situation is known.
- The leader carries out situations that people set by hand. A request is settled in the
  transaction that has its transition: it takes effect once.
- Where two persons are asked for, the approver is not the one who made the request.
- Settled requests and transitions are forgotten when they are older than the history.
- Who asks to be erased often delays nobody's messages: a reload takes its share of the time, and
  forgets all who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from penstock.cep.engine import Engine
from penstock.cep.steps import record_set
from penstock.clock import boot_clock, utc_now
from penstock.errors import PenstockError, UnavailableError, UsageError, quote
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.detection.persistence import restore
from penstock.store.detection.erasures import DetectionErasures
from penstock.store.detection.journal import DetectionStore, LeaderRecord, LeaseLostError
from penstock.store.detection.situations import Situations
from penstock.store.detection.tables import Request, as_stored
from penstock.telemetry import get_logger

_IDLE_SECONDS: Final = 3600.0
_RENEWAL_SECONDS: Final = 0.5
_SEARCH_SECONDS: Final = 0.1
"""How often a leader is searched for, while messages may wait for one."""
_log = get_logger("gateway")


class LeaderElection:
    """Decides whether one gateway leads, follows or idles."""

    def __init__(
        self,
        host: EngineHost,
        store: DetectionStore,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._host = host
        self._store = store
        self._run_in_thread = run_in_thread
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Detect whenever there is something to detect and nobody else does."""
        host = self._host
        while not host.stopping:
            host.changed.clear()
            try:
                if not host.is_needed:
                    await self._idle()
                elif host.engine is None:
                    await self._campaign()
                else:
                    await self._renew()
            except UnavailableError as error:
                host.writer.handle_failure(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is retried
                _log.exception("detection could not begin", error=error)
                host.invalidate("state", "its state cannot be taken up")
            self._started.set()
            try:
                async with asyncio.timeout(self._pause()):
                    await host.changed.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        host = self._host
        if not host.is_needed:
            return _IDLE_SECONDS
        searches = host.engine is None and host.trouble
        return _SEARCH_SECONDS if searches else _RENEWAL_SECONDS

    async def wait_started(self, seconds: float) -> None:
        """Wait for the first attempt to lead or follow."""
        try:
            async with asyncio.timeout(seconds):
                await self._started.wait()
        except TimeoutError:
            _log.warning("detection has not begun in time")

    async def stop(self) -> None:
        """Neither lead nor follow any longer."""
        host = self._host
        host.stopping = True
        host.leader.close()
        host.follower.leave("the gateway ends")
        host.follower.give_up()
        await self._hand_over()

    async def _hand_over(self) -> None:
        """Write a last snapshot and release the lease."""
        host = self._host
        journal, lease = host.journal, host.lease
        host.timer.cancel()
        await host.writer.finish(lease.seconds)
        await host.reload.finish()
        if host.is_alive():
            journal.snapshot_due = True
            journal.add()
            try:
                async with asyncio.timeout(lease.seconds):
                    await journal.finish()
                    await lease.release()
            except (TimeoutError, UnavailableError, LeaseLostError) as error:
                _log.warning("the last state was not stored", error=error)

    async def _idle(self) -> None:
        """Neither lead nor follow: there is nothing to detect."""
        host = self._host
        if host.engine is not None:
            host.leader.step_down("nothing is to be detected")
            await self._hand_over()
            host.stop()
        if not host.is_needed:
            host.follower.leave("nothing is to be detected")
            host.trouble = ""
            host.board.fill(())

    async def _campaign(self) -> None:
        """Lead, or follow the leader."""
        host = self._host
        if host.follower.joined:
            return
        await host.reload.finish()
        await host.journal.finish()
        if not await self._acquire_lease():
            return
        program = host.program
        work = asyncio.ensure_future(self._run_in_thread(restore, self._store, program))
        while not (await asyncio.wait({work}, timeout=host.lease.renewal_seconds))[0]:
            await self._acquire_lease()
        state, last_batch = work.result()
        if program is not host.program:
            host.changed.set()
        elif await self._acquire_lease():
            host.start(state, last_batch)

    async def _renew(self) -> None:
        """Renew the lease while nothing is written."""
        host = self._host
        host.report_ignored()
        if host.is_alive() and host.lease.is_due:
            await self._acquire_lease()

    async def _acquire_lease(self) -> bool:
        """Acquire or renew the lease; False where another gateway holds it."""
        host = self._host
        other = await host.lease.acquire()
        if other is None:
            return True
        if host.engine is not None:
            host.invalidate("lease", f"another gateway detects: {other.place or 'elsewhere'}")
        await self._follow(other)
        return False

    async def _follow(self, leader: LeaderRecord) -> None:
        """Replicate the state of the leader."""
        host = self._host
        where = f"another gateway detects: {leader.place or 'elsewhere'}"
        if not leader.address:
            host.follower.give_up()
            host.invalidate("lease", where)
            return
        trouble = await host.follower.join(leader.address, host.lease.seconds)
        if trouble:
            host.invalidate("link", f"{where}; {trouble}")
        elif host.follower.joined:
            host.trouble = ""
            _log.info("events are detected by another gateway")


_POLL_SECONDS: Final = 0.5
_POLLS_PER_SWEEP: Final = 7_200


class SituationRequests:
    """Carries out requests for situations while this gateway detects."""

    def __init__(
        self,
        host: EngineHost,
        situations: Situations,
        run_in_thread: Callable[..., Awaitable[Any]],
        *,
        two_persons: bool,
        history: float,
    ) -> None:
        self._host = host
        self._situations = situations
        self._run_in_thread = run_in_thread
        self._two_persons = two_persons
        self._history = timedelta(seconds=history)

    async def run(self) -> None:
        """Poll the store for requests, and sweep its history."""
        host = self._host
        polls = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if host.engine is None or host.reload.busy:
                continue
            try:
                for request in await self._run_in_thread(self._situations.ready):
                    self.carry_out(request)
                # Only then the store knows which of them are still ready.
                await host.journal.reach(host.journal.added)
                polls += 1
                if not polls % _POLLS_PER_SWEEP:
                    await self._run_in_thread(self._situations.forget, utc_now() - self._history)
            except UnavailableError as error:
                _log.warning("requests for situations cannot be read", error=error)

    def carry_out(self, request: Request) -> None:
        """Carry out a request, or settle it with the reason why not."""
        host = self._host
        engine = host.engine
        if engine is None or host.reload.busy:
            return
        now = host.clock.now()
        try:
            subject = self._find_subject(engine, request)
            result = engine.set_situation(
                request.scenario, subject, request.situation, now, request.hold
            )
        except PenstockError as error:
            host.journal.add(settled=[(request.request, error.message)])
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine is discarded
            host.crash(error)
            return
        record = record_set(request.scenario, subject, request.situation, now, request.hold)
        host.apply(result, record, request)

    def _find_subject(self, engine: Engine, request: Request) -> str:
        """Return the subject of a request, or refuse the request.

        An odd name may be given as the store's tables have it.
        """
        if self._two_persons and request.approver in {None, request.actor}:
            raise UsageError("a second person has not approved it")
        active = {who for name, who, _, _ in engine.situations() if name == request.scenario}
        if request.subject in active:
            return request.subject
        for who in active:
            if as_stored(who) == request.subject:
                return who
        if request.situation is None:
            # Who mistook a name must not believe that an emergency is over.
            raise UsageError(
                f"{quote(request.subject)} is in no situation: there is nothing to end"
            )
        return request.subject


_RELOAD_SHARE: Final = 20.0
"""How many times as long as a reload no further one forgets anybody."""


class ErasureRequests:
    """Forgets people who are erased, while this gateway detects."""

    def __init__(
        self,
        host: EngineHost,
        erasures: DetectionErasures,
        run_in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._host = host
        self._erasures = erasures
        self._run_in_thread = run_in_thread

    async def run(self) -> None:
        """Poll the store for people to forget."""
        pause = _POLL_SECONDS
        while True:
            await asyncio.sleep(pause)
            began, pause = boot_clock(), _POLL_SECONDS
            try:
                if await self.carry_out():
                    pause = max(pause, _RELOAD_SHARE * (boot_clock() - began))
            except UnavailableError as error:
                _log.warning("whom to forget cannot be read", error=error)

    async def carry_out(self) -> int:
        """Forget all who wait and are in no situation; return how many."""
        host = self._host
        if host.engine is None or host.reload.busy:
            return 0
        waiting = await self._run_in_thread(self._erasures.waiting)
        if not waiting or host.engine is None:
            return 0
        standing = {who for _, who, _, _ in host.engine.situations()}
        people = [it for it in waiting if it.person not in standing]
        counts = await host.reload.forget(people) if people else None
        if counts is None:
            return 0
        settled = {it.request: count for it, count in zip(people, counts, strict=True)}
        await self._run_in_thread(self._erasures.settle, settled)
        return len(people)
