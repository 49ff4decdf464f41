"""Emergencies at this gateway: the parts that detect, decide and act, put together.

    DefinitionFeed ──▶ Policies ──▶ EngineHost ──▶ board ──▶ Guard ◀── Downstream, Upstream, Wills
                                   │ ▲
               Actions ◀── outbox ─┘ └── requests by hand, from the store
                  └──▶ Publisher ──▶ broker

    other gateways ──▶ ReplicationLeader ──▶ EngineHost here
    ReplicationFollower ──▶ EngineHost at another gateway

Rules that hold here:
- Who detects is one question with one answer (`EngineHost.is_alive`): of several gateways on
  one store the one that holds the claim. The others ask it about what could be an event, and
  know the situations from it (`sharing`).
- Every transition and everything set by hand is in the audit log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.clock import boot_clock, utc_now
from penstock.config.sections.gateway import EmergencySettings
from penstock.errors import UnavailableError
from penstock.gateway.authorization.guard import Guard
from penstock.gateway.clock import Clock
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.detection.leader_election import LeaderElection
from penstock.gateway.publish_result import NO_LEADER, PublishResult
from penstock.gateway.publishing.actions import Actions
from penstock.gateway.publishing.publisher import Publisher
from penstock.gateway.replication.deduplication import SubmissionId
from penstock.gateway.replication.link import ReplicationTerms
from penstock.gateway.replication.messages import PublishRequest
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.detection import DetectionStore, Step
from penstock.store.situations import Request, Situations, name_details

if TYPE_CHECKING:
    from penstock.gateway.service.gateway import Gateway

_START_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_SWEEP_LOOKS = 7_200
_THREADS = 2
_LEASE_SHARE = 10
_SHORTEST_LEASE = 1.0
_PATIENCE = 1.5
_HEAD_BYTES = 1 << 20
_LARGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class Sharing:
    """How gateways of one store reach each other."""

    secret: bytes
    host: str
    port: int


class Emergencies:
    """All that a gateway needs for policies and emergencies."""

    def __init__(
        self,
        gateway: Gateway,
        settings: EmergencySettings,
        situations: Situations,
        store: DetectionStore,
        sharing: Sharing | None = None,
    ) -> None:
        self._store = store
        self._sharing = sharing
        self._gateway = gateway
        self._settings = settings
        self._situations = situations
        # Detection waits behind nobody: it fails closed where the store answers too late.
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-detection")
        clock = Clock()
        self.detection = EngineHost(
            store,
            clock,
            lease=settings.lease,
            snapshot_bytes=settings.snapshot,
            run_in_thread=self._run_in_thread,
            tell=self._record,
        )
        self.election = LeaderElection(self.detection, store)
        self.guard = Guard(
            gateway.rules.policies, self.detection, clock, gateway.denials, gateway.stands_at
        )
        self.publisher = Publisher(gateway.broker)
        self.actions = Actions(
            self.guard,
            self.publisher,
            gateway.notation,
            gateway.limits,
            depth=settings.action_depth,
            rate=settings.action_rate,
        )
        self.detection.act = self.actions.carry_out
        self.detection.resume = self.actions.resume
        self.detection.leader.decide = self._decide_for
        self.detection.leader.epoch = self._tell_epoch
        self.detection.follower.submissions.epoch = self._tell_epoch
        self.detection.follower.certain = gateway.decide_again

    async def start(self) -> None:
        """Begin to detect, where there is something to detect."""
        if self._sharing is not None:
            await self._share(self._sharing)
        self._gateway.start_task(self.publisher.run())
        self._gateway.start_task(self.election.run())
        self._gateway.start_task(self._follow_requests())
        await self.election.wait_started(_START_SECONDS)

    async def finish(self, seconds: float) -> None:
        """Give what is under way some time to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.detection.follower.submissions.finish()
                await self.detection.journal.finish()
                await self.publisher.finish(seconds)

    async def stop(self) -> None:
        """Save the state, and let another gateway detect."""
        await self.election.stop()
        self._threads.shutdown(wait=False)

    async def _share(self, sharing: Sharing) -> None:
        """Let other gateways come, and be told by them."""
        lease = self._settings.lease
        terms = ReplicationTerms(
            sharing.secret,
            largest=max(self._gateway.limits.packet + _HEAD_BYTES, _LARGEST),
            lease=max(lease / _LEASE_SHARE, _SHORTEST_LEASE),
            patience=_PATIENCE * lease,
        )
        port = await self.detection.leader.listen(terms, sharing.host, sharing.port)
        self.detection.follower.terms = terms
        self._store.address = f"{sharing.host}:{port}"

    def _tell_epoch(self) -> int:
        return self._gateway.rules.epoch

    def _decide_for(self, asked: PublishRequest, receipt: SubmissionId) -> PublishResult:
        """Decide on a message of another gateway's client, while the definitions are known."""
        rules = self._gateway.rules
        if boot_clock() > rules.fresh_until or not rules.enforceable:
            return NO_LEADER
        return self.guard.publish_for(asked, receipt)

    async def _run_in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._gateway.loop.run_in_executor(self._threads, function, *arguments)

    async def _follow_requests(self) -> None:
        """Carry out what people ask for, and keep the history short."""
        gateway = self._gateway
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.detection.engine is None or self.detection.reload.busy:
                continue
            try:
                for request in await self._run_in_thread(self._situations.ready):
                    self.detection.set(request, two_persons=self._settings.two_persons)
                # Only then the store tells which are still to be carried out.
                await self.detection.journal.reach(self.detection.journal.added)
                looks += 1
                if not looks % _SWEEP_LOOKS:
                    before = utc_now() - timedelta(seconds=self._settings.history)
                    await self._run_in_thread(self._situations.forget, before)
            except UnavailableError as error:
                gateway.log.warning("requests for situations cannot be read", error=error)

    def _record(self, step: Step, request: Request | None) -> None:
        """Write down a transition in the audit log."""
        self._gateway.denials.record(
            lambda people: _entry(step, request, people, self._gateway.rules.epoch)
        )


def _entry(step: Step, request: Request | None, people: Pseudonyms, epoch: int) -> Entry:
    details = name_details(scenario=step.scenario, situation=step.target, event=step.event)
    if request is not None:
        details["request"] = request.request
    return Entry.make(
        "situation.changed" if step.target is not None else "situation.ended",
        Outcome.DONE,
        actor=people.person(request.actor) if request is not None else None,
        subject=people.person(step.subject),
        epoch=epoch,
        reason=step.cause.value,
        **details,
    )
