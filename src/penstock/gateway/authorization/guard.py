"""Policies, preferences and emergencies on the way of messages.

    publish:  offer ──▶ may write? ──▶ commit: situations move ──▶ to the broker
       │                    └── no: nothing has happened
       └──▶ another gateway detects ──▶ it does all of this, and says what came of it
    deliver:  purposes allow ──▶ may read, in the situations of now?

Rules that hold here:
- Each is one synchronous step: nothing comes between reading situations and acting on them.
  Where several gateways share detection a publication is decided in one step at the one that
  detects, and goes to the broker when all of them know what it has changed.
- What would be denied for situations that are in doubt for the moment waits until they are known
  or lost.
- A message that could be an event is refused while events are not detected, and so is one
  whose event cannot be put on record.
- What depends on situations, on the time, or on what is in a message is decided for each
  message. Only what depends on none of them may be remembered (`lasting`).
- Where preferences exist, a message without a stamp is nobody's to read: nobody can tell
  whose preferences hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from penstock.cep.event_binding import Packet
from penstock.errors import UnavailableError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.policies import Policies
from penstock.gateway.clock import Clock
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.publish_result import (
    ALWAYS_ACCEPTED,
    NO_LEADER,
    PendingResult,
    PublishOutcome,
    PublishResult,
)
from penstock.gateway.replication.deduplication import SubmissionId, fingerprint_of
from penstock.gateway.replication.messages import PublishRequest
from penstock.gateway.session import ANONYMOUS, Session
from penstock.gateway.translation import ACTIONS, CLIENT, FOR, PUBLISHER
from penstock.mqtt import Publish
from penstock.mqtt.properties import UserProperties
from penstock.policy.access.objects import Message
from penstock.policy.decision import Decision, Depends
from penstock.telemetry import get_logger

_STAMPS_LIMIT: Final = 65_536
_LONGEST: Final = 512
_NOBODY: Final[Mapping[str, Any]] = {}

_log = get_logger("gateway")

UNSTAMPED: Final = "unstamped"
"""The rule that denies a message of which nobody knows who published it."""


class Stamp(NamedTuple):
    """Who published a message, and for whom."""

    user: str | None
    client: str | None
    behalf: str | None


class Guard:
    """What decides beside purposes, with the state that it decides by."""

    def __init__(
        self,
        policies: Policies,
        detection: EngineHost,
        clock: Clock,
        denials: Denials,
        place: str | None = None,
    ) -> None:
        self.policies = policies
        self.detection = detection
        self._clock = clock
        self._denials = denials
        self._place = place
        self._stamps: dict[UserProperties, Stamp | None] = {}

    @property
    def decides(self) -> bool:
        """Whether deliveries are to be decided here, too."""
        return self.policies.decides

    def concerns(self, topic: str) -> bool:
        """Say whether messages on a topic must be looked at when they are published."""
        return self.policies.access.settings.required or self.detection.watched_topics.matches(
            topic
        )

    def publish(self, session: Session, packet: Publish) -> PublishResult | PendingResult:
        """Decide on a message of a client; let the event that it is take effect."""
        result = self._publish(session, packet)
        return self._when_current(session, packet) if _awaits_leader(result) else result

    def _publish(self, session: Session, packet: Publish) -> PublishResult | PendingResult:
        topic = packet.topic
        detection = self.detection
        watched = detection.watched_topics.matches(topic)
        if not watched and not self.policies.access.settings.required:
            return ALWAYS_ACCEPTED
        user = None if session.principal == ANONYMOUS else session.principal
        rest = _rest(packet)
        fingerprint = fingerprint_of(user, session.client_id, packet) if watched else None
        request = PublishRequest(
            user, session.client_id, topic, packet.payload, rest, self._place, fingerprint
        )
        if watched and detection.reload.busy:
            return self._after_reload(session, packet)
        if watched and not detection.is_alive():
            follower = detection.follower
            return follower.submit(request) if follower.asks else NO_LEADER
        result = self._decide(request, watched=watched)
        if detection.leader.pending and result.accepted:
            return self._when_replicated(result)
        return result

    def publish_for(self, request: PublishRequest, submission: SubmissionId) -> PublishResult:
        """Decide on a message of another gateway's client, once."""
        detection = self.detection
        if not detection.is_alive():
            return NO_LEADER
        if detection.applied_submissions.has(submission):
            # It took effect and nobody was told; what is on record up to now holds it.
            return PublishResult(journal=detection.journal, ticket=detection.journal.added)
        watched = detection.watched_topics.matches(request.topic)
        return self._decide(request, watched=watched, submission=submission)

    def _decide(
        self, request: PublishRequest, *, watched: bool, submission: SubmissionId | None = None
    ) -> PublishResult:
        """Decide on a message, and let the event that it is take effect, in one step."""
        detection, access = self.detection, self.policies.access
        topic = request.topic
        now = self._clock.now()
        principal = access.principal(request.user, request.client)
        message = Message(
            topic, request.payload, user=request.user, client=request.client, rest=request.rest
        )
        e = _surroundings(now, request.place)
        detection.catch_up(now)
        prepared = None
        fingerprint = request.fingerprint
        repeated = fingerprint is not None and detection.duplicates.has(fingerprint)
        if watched and not repeated:
            if detection.engine is None:
                return NO_LEADER
            seen = Packet(
                topic,
                message.t,
                principal.attributes,
                access.about(message),
                e,
                ahead=self._clock.ahead,
            )
            try:
                prepared = detection.engine.prepare(seen, now)
                record = prepared.record() if prepared.bound else b""
            except Exception as error:  # noqa: BLE001 - whatever it is, it was no event
                _log.warning("a message could not be looked at", error=error)
                return PublishResult(PublishOutcome.INVALID_EVENT)
        decision = access.decide("write", principal, message, e, detection.board)
        if not decision:
            return self._refuse(decision)
        if decision.applied is not None:
            self.tell_emergency(Session(request.client, request.user or ANONYMOUS, 0), decision)
        if prepared is None or not prepared.bound:
            if not repeated:
                return PublishResult(lasting=not watched and self._lasts(decision.depends, topic))
            # It took effect before: the journal has it with what was added up to now.
            ticket = detection.journal.added
        else:
            try:
                ticket = detection.commit(prepared, record, submission, fingerprint)
            except UnavailableError:
                return NO_LEADER
        return PublishResult(journal=detection.journal, ticket=ticket)

    def _refuse(self, decision: Decision) -> PublishResult:
        if self.awaits_leader(decision):
            return PublishResult(PublishOutcome.AWAITING_LEADER)
        return PublishResult(PublishOutcome.DENIED, decision.rule)

    async def _after_reload(self, session: Session, packet: Publish) -> PublishResult:
        """Decide on a message when changed definitions are taken over."""
        await self.detection.reload.wait()
        result = self.publish(session, packet)
        return result if isinstance(result, PublishResult) else await result

    async def _when_current(self, session: Session, packet: Publish) -> PublishResult:
        """Decide on a message when the situations are known that it depends on, or lost."""
        while True:
            await self.detection.follower.wait_current()
            result = self._publish(session, packet)
            if not _awaits_leader(result):
                return result if isinstance(result, PublishResult) else await result

    async def _when_replicated(self, result: PublishResult) -> PublishResult:
        """Wait until all gateways know what was changed up to a decision."""
        return result if await self.detection.leader.wait_replicated() else NO_LEADER

    def detect(self, topic: str, payload: bytes, depth: int) -> bool:
        """Let a message of an action take effect as an event, if it is one."""
        detection, access = self.detection, self.policies.access
        engine = detection.engine
        if engine is None:
            return False
        if not detection.watched_topics.matches(topic):
            return True
        now = self._clock.now()
        message = Message(topic, payload, user=ACTIONS)
        e = _surroundings(now, self._place)
        # Actions go by this gateway's clock: whatever they tell needs no `ahead`.
        packet = Packet(topic, message.t, _NOBODY, access.about(message), e, depth=depth)
        try:
            prepared = engine.prepare(packet, now)
            if prepared.bound:
                detection.commit(prepared, prepared.record())
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("a message of an action could not be looked at", error=error)
            return False
        return True

    def open(self, packet: Publish) -> Message | None:
        """Return a message that is to be delivered as decisions see it; None: nobody's."""
        stamp = self._read_stamp(packet.properties.reserved)
        if stamp is None:
            if self.policies.access.has_preferences:
                return None
            stamp = Stamp(None, None, None)
        return Message(
            packet.topic,
            packet.payload,
            user=stamp.user,
            client=stamp.client,
            behalf=stamp.behalf,
            rest=_rest(packet),
        )

    def judge(self, session: Session, packet: Publish) -> Judge:
        """Make what decides on one delivery, for each of the purposes that it is asked for."""
        return Judge(self, session, self.open(packet), packet.topic)

    def read(self, session: Session, message: Message, purpose: str | None) -> Decision:
        """Decide whether a message may be delivered for a purpose, now."""
        now = self._clock.now()
        self.detection.catch_up(now)
        user = None if session.principal == ANONYMOUS else session.principal
        access = self.policies.access
        principal = access.principal(user, session.client_id)
        e = _surroundings(now, self._place)
        e["purpose"] = purpose
        return access.decide("read", principal, message, e, self.detection.board)

    def awaits_leader(self, decision: Decision) -> bool:
        """Say whether a refusal may turn out otherwise as soon as the situations are known."""
        return self.detection.follower.awaiting_leader and bool(
            decision.depends & Depends.SITUATION
        )

    def read_lasts(self, decision: Decision, topic: str) -> bool:
        """Say whether a decision holds for all messages with the same topic and properties."""
        # The publisher and the purpose are in the properties that it is remembered by.
        depends = decision.depends & ~(Depends.PUBLISHER | Depends.ENVIRONMENT)
        return self._lasts(depends, topic)

    def stamp_of(self, session: Session) -> tuple[tuple[str, str], ...]:
        """Return what is added to the stamp of a client's messages."""
        if not self.decides:
            return ()
        user = None if session.principal == ANONYMOUS else session.principal
        added: list[tuple[str, str]] = [(CLIENT, session.client_id)]
        behalf = self.policies.access.publishes_for(user, session.client_id)
        if behalf is not None:
            added.append((FOR, behalf))
        return tuple(added)

    def tell_emergency(self, session: Session, decision: Decision) -> None:
        """Put on record that an emergency policy has granted something."""
        if decision.applied is not None:
            self._denials.emergency(
                session, decision.rule, decision.applied, overridden=decision.overridden
            )

    def _lasts(self, depends: Depends, topic: str) -> bool:
        if depends & Depends.OBJECT and not self.policies.access.layout(topic).paths:
            depends &= ~Depends.OBJECT  # all of it is in the topic
        return not depends

    def _read_stamp(self, reserved: UserProperties) -> Stamp | None:
        known = self._stamps.get(reserved)
        if known is not None or reserved in self._stamps:
            return known
        found = dict(reserved)
        stamp: Stamp | None = None
        if PUBLISHER in found:
            user: str | None = found[PUBLISHER]
            if user == ANONYMOUS:
                user = None
            stamp = Stamp(user, found.get(CLIENT), found.get(FOR))
        if sum(len(name) + len(value) for name, value in reserved) <= _LONGEST:
            if len(self._stamps) >= _STAMPS_LIMIT:
                self._stamps.clear()
            self._stamps[reserved] = stamp
        return stamp


class Judge:
    """Decides on one delivery, in one step."""

    __slots__ = (
        "_guard",
        "_message",
        "_session",
        "_topic",
        "awaiting_leader",
        "lasting",
        "refusal",
    )

    def __init__(self, guard: Guard, session: Session, message: Message | None, topic: str) -> None:
        self.lasting = True
        self.awaiting_leader = False
        self.refusal = "" if message is not None else UNSTAMPED
        self._guard = guard
        self._session = session
        self._message = message
        self._topic = topic

    def allows(self, purpose: str | None) -> bool:
        """Decide for one purpose; what was denied leaves its rule in `refusal`."""
        guard, message = self._guard, self._message
        if message is None:
            return False
        decision = guard.read(self._session, message, purpose)
        self.lasting = self.lasting and guard.read_lasts(decision, self._topic)
        if not decision:
            self.refusal = decision.rule
            self.awaiting_leader = self.awaiting_leader or guard.awaits_leader(decision)
        elif decision.applied is not None:
            guard.tell_emergency(self._session, decision)
        return bool(decision)


def _awaits_leader(result: PublishResult | PendingResult) -> bool:
    return isinstance(result, PublishResult) and result.outcome is PublishOutcome.AWAITING_LEADER


def _surroundings(now: int, place: str | None) -> dict[str, Any]:
    """Return what conditions know as `e`; what is not known has no name there."""
    e: dict[str, Any] = {"time": datetime.fromtimestamp(now / 1000, UTC)}
    if place is not None:
        e["place"] = place
    return e


def _rest(packet: Publish) -> dict[str, Any]:
    properties = packet.properties
    return {
        "qos": packet.first >> 1 & 3,
        "retain": bool(packet.first & 1),
        "size": len(packet.payload),
        "contentType": properties.content_type,
        "properties": dict(properties.user),
    }
