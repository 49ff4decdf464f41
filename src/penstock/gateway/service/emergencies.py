"""Emergencies at this gateway: the parts that detect, decide and act, put together.

    DefinitionFeed ──▶ Policies ──▶ EngineHost ──▶ board ──▶ Guard ◀── Downstream, Upstream, Wills
                                   │ ▲
               Actions ◀── outbox ─┘ └── requests by hand, from the store
                  └──▶ Publisher ──▶ broker

    other gateways ──▶ ReplicationLeader ──▶ EngineHost here
    ReplicationFollower ──▶ EngineHost at another gateway

Rules that hold here:
- Who detects is one question with one answer (`EngineHost.is_alive`): of several gateways on
  one store the one that holds the leader lease. The others submit possible events to it, and
  replicate its situations (`replication`).
- Every transition and everything set by hand is in the audit log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from penstock.clock import boot_clock
from penstock.config.gateway import EmergencySettings
from penstock.gateway.authorization.delivery_check import DeliveryCheck
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.publication_check import PublicationCheck
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.detection.leadership import (
    ErasureRequests,
    LeaderElection,
    SituationRequests,
)
from penstock.gateway.event_loop import Background, Clock
from penstock.gateway.limits import Limits
from penstock.gateway.publications import NO_LEADER, PublishRequest, PublishResult, SubmissionId
from penstock.gateway.publishing.actions import Actions
from penstock.gateway.publishing.publisher import Publisher
from penstock.gateway.replication.link import ReplicationTerms
from penstock.policy.purposes.settings import Notation
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.detection.journal import DetectedTransition, DetectionStore
from penstock.store.detection.situations import Situations, name_details
from penstock.store.detection.tables import Request

_START_SECONDS = 30.0
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
        settings: EmergencySettings,
        situations: Situations,
        store: DetectionStore,
        *,
        sharing: Sharing | None,
        rules: Rules,
        denials: Denials,
        limits: Limits,
        notation: Notation,
        publisher: Publisher,
        place: str | None,
        retry_deliveries: Callable[[], None],
    ) -> None:
        self._store = store
        self._sharing = sharing
        self._settings = settings
        self._rules = rules
        self._denials = denials
        self._limits = limits
        self._publisher = publisher
        self._retry_deliveries = retry_deliveries
        # Detection waits behind nobody: it fails closed where the store answers too late.
        self._background = Background(_THREADS, "penstock-detection")
        in_thread = self._background.run_in_thread
        clock = Clock()
        rules.clock = clock.now
        self.detection = EngineHost(
            store,
            clock,
            lease=settings.lease,
            snapshot_bytes=settings.snapshot,
            replication=self._replication_terms(),
            decider=self,
            listener=self,
            run_in_thread=in_thread,
        )
        self.election = LeaderElection(self.detection, store, in_thread)
        self.requests = SituationRequests(
            self.detection,
            situations,
            in_thread,
            two_persons=settings.two_persons,
            history=settings.history,
        )
        self.erasures = ErasureRequests(self.detection, situations.erasures, in_thread)
        known = (rules, self.detection, clock, denials, place)
        self.publication_check = PublicationCheck(*known, longest=limits.packet)
        self.delivery_check = DeliveryCheck(*known)
        self.actions = Actions(
            self.publication_check,
            publisher,
            notation,
            limits,
            depth=settings.action_depth,
            rate=settings.action_rate,
        )

    async def start(self) -> None:
        """Begin to detect, where there is something to detect."""
        if self._sharing is not None:
            host, port = self._sharing.host, self._sharing.port
            port = await self.detection.leader.listen(host, port)
            self._store.address = f"{host}:{port}"
        self._background.start(self._publisher.run())
        self._background.start(self.election.run())
        self._background.start(self.requests.run())
        self._background.start(self.erasures.run())
        await self.election.wait_started(_START_SECONDS)

    async def finish(self, seconds: float) -> None:
        """Give what is under way some time to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.detection.follower.submissions.finish()
                await self.detection.journal.finish()
                await self._publisher.finish(seconds)

    async def stop(self) -> None:
        """Save the state, and let another gateway detect."""
        await self.election.stop()
        await self._background.cancel()
        self._background.close()

    def _replication_terms(self) -> ReplicationTerms | None:
        """Return what gateways that share detection agree on; None where this one is alone."""
        if self._sharing is None:
            return None
        lease = self._settings.lease
        return ReplicationTerms(
            self._sharing.secret,
            largest=max(self._limits.packet + _HEAD_BYTES, _LARGEST),
            lease=max(lease / _LEASE_SHARE, _SHORTEST_LEASE),
            patience=_PATIENCE * lease,
        )

    # --- what detection asks of the gateway ---

    @property
    def epoch(self) -> int:
        """The definitions that are known here."""
        return self._rules.epoch

    def decide(self, request: PublishRequest, submission: SubmissionId) -> PublishResult:
        """Decide on a message of another gateway's client, while the definitions are known."""
        rules = self._rules
        if boot_clock() > rules.fresh_until or not rules.enforceable:
            return NO_LEADER
        return self.publication_check.publish_for(request, submission)

    def carry_out_actions(self) -> None:
        """Carry out what is new in the outbox."""
        self.actions.carry_out()

    def resume_actions(self) -> None:
        """Go on with what was in the outbox before a restart."""
        self.actions.resume()

    def retry_deliveries(self) -> None:
        """Decide on the deliveries that waited for replicated state."""
        self._retry_deliveries()

    def record_transition(self, step: DetectedTransition, request: Request | None) -> None:
        """Record a transition in the audit log."""
        self._denials.record(lambda people: _entry(step, request, people, self._rules.epoch))


def _entry(
    step: DetectedTransition, request: Request | None, people: Pseudonyms, epoch: int
) -> Entry:
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
