"""Situations that people set by hand: requests in the store, carried out by the leader.

    `penstock situation` ──▶ store: ready ──▶ engine ──▶ journal ──▶ store: done, or failed and why

Rules that hold here:
- A request is settled in the transaction that has its transition: it takes effect once.
- Where two persons are asked for, the approver is not the one who made the request.
- Settled requests and transitions are forgotten when they are older than the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from penstock.cep.engine import Engine
from penstock.cep.steps import record_set
from penstock.clock import utc_now
from penstock.errors import PenstockError, UnavailableError, UsageError, quote
from penstock.gateway.detection.engine_host import EngineHost
from penstock.store.detection.situations import Situations
from penstock.store.detection.tables import Request, as_stored
from penstock.telemetry import get_logger

_POLL_SECONDS: Final = 0.5
_POLLS_PER_SWEEP: Final = 7_200
_log = get_logger("gateway")


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
