"""Decides on publications: may write? And lets the event that a message is take effect.

    publish:  offer ──▶ may write? ──▶ commit: situations move ──▶ to the broker
       │                    └── no: nothing has happened
       └──▶ another gateway detects ──▶ it does all of this, and says what came of it

Rules that hold here:
- Each is one synchronous step: nothing comes between reading situations and acting on them.
  Where several gateways share detection a publication is decided in one step at the leader,
  and goes to the broker when all of them know what it has changed.
- What would be denied by situations that are not known for the moment waits until they are
  known or lost.
- What transformations change on publication is made before anything takes effect: detection sees
  the message as it was published, and the broker, the event log and subscribers what was made.
- A message that could be an event is refused while events are not detected, and so is one
  whose event cannot be put on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from penstock.cep.engine import PreparedStep
from penstock.cep.event_binding import Packet
from penstock.errors import UnavailableError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.request_context import (
    is_lasting,
    make_environment,
    packet_fields,
)
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.broker import ACTIONS
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.event_loop import Clock
from penstock.gateway.publications import (
    ALWAYS_ACCEPTED,
    NO_LEADER,
    PendingResult,
    PublishOutcome,
    PublishRequest,
    PublishResult,
    SubmissionId,
    fingerprint_of,
)
from penstock.gateway.session import Session
from penstock.mqtt import Publish
from penstock.mqtt.codes import PACKET_SIZE_LIMIT
from penstock.policy.access.principals import ANONYMOUS
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.access.rules import MARK
from penstock.policy.capabilities import CAPABILITY, CapabilityPart
from penstock.policy.decision import Decision, Depends, Reshaped
from penstock.telemetry import get_logger

_NOBODY: Final[Mapping[str, Any]] = {}

_log = get_logger("gateway")


class _Change(NamedTuple):
    """What transformations make of a message on publication, and their names."""

    made: Reshaped
    rule: str


class PublicationCheck:
    """Asks the authorizer about publications, and hands those that may pass to detection."""

    def __init__(
        self,
        rules: Rules,
        detection: EngineHost,
        clock: Clock,
        denials: Denials,
        place: str | None = None,
        longest: int = PACKET_SIZE_LIMIT,
    ) -> None:
        self.detection = detection
        self._rules = rules
        self._clock = clock
        self._denials = denials
        self._place = place
        self._longest = longest

    def concerns(self, topic: str) -> bool:
        """Say whether messages on a topic must be looked at when they are published."""
        return self._decides(topic) or self.detection.watched_topics.matches(topic)

    def _decides(self, topic: str) -> bool:
        """Say whether there is anything to decide about writing to a topic."""
        if topic[0] == MARK:
            return True
        if not self._rules.decides_writes:
            return False
        authorizer = self._rules.authorizer
        return (
            authorizer.access.decides["write"]
            or authorizer.interaction.concerns("write", topic)
            or authorizer.capabilities.concerns(topic)
            or self._rules.advertisements.are_needed(topic)
            or self._rules.contents.types.are_checked(topic)
            or self._rules.credentials.concerns(topic)
        )

    def reshape_own(self, topic: str, payload: bytes) -> Reshaped | PublishResult | None:
        """Return what transformations make of a message of the gateway's own; None: nothing.

        Nobody holds a capability in the gateway's name: other domains' types are not for it.
        """
        if self._rules.authorizer.capabilities.concerns(topic):
            return PublishResult(PublishOutcome.DENIED, CAPABILITY)
        rest = {"qos": 1, "retain": False, "size": len(payload)}
        request = PublishRequest(None, "", topic, payload, rest, self._place, None)
        reshaped = self._reshape(request)
        if isinstance(reshaped, _Change):
            self._note(request, reshaped)
            return reshaped.made
        return reshaped

    def _note(self, request: PublishRequest, change: _Change) -> None:
        """Count a message that is published as transformations made it."""
        publisher = Session(request.client, request.user or ANONYMOUS, 0)
        self._denials.transformed(publisher, change.rule, "publication")

    def _reshape(self, request: PublishRequest) -> _Change | PublishResult | None:
        """Return what transformations make of a message, or why it is denied; None: nothing."""
        authorizer = self._rules.authorizer
        interaction, access = authorizer.interaction, authorizer.access
        topic = request.topic
        if not interaction.concerns("write", topic):
            return None
        message = Message(
            topic, request.payload, user=request.user, client=request.client, rest=request.rest
        )
        if message.is_empty:
            return None
        now = self._clock.now()
        self.detection.catch_up(now)
        principal = access.principal(request.user, request.client)
        e = make_environment(now, request.place)
        seen = (principal.attributes, access.about(message), e, message.t)
        decision = interaction.decide("write", principal, message, seen, self.detection.board)
        if decision is None or decision.reshaping is None:
            return None if decision is None or decision.allowed else self._refuse(decision)
        try:
            made = decision.reshaping.apply(message, lambda: seen)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, nothing is published
            made = f"error {type(error).__name__}"
        if isinstance(made, str) or not self._is_welcome(topic, made):
            return PublishResult(PublishOutcome.DENIED, decision.rule)
        return _Change(made, decision.rule)

    def _force(self, request: PublishRequest) -> PublishRequest | None:
        """Return a request with the values that a capability fixes; None: it is as it was.

        What no capability allows is denied by the authorizer, as everything is.
        """
        capabilities = self._rules.authorizer.capabilities
        if not capabilities.concerns(request.topic):
            return None
        message = Message(
            request.topic,
            request.payload,
            user=request.user,
            client=request.client,
            rest=request.rest,
        )
        e = make_environment(self._clock.now(), request.place)
        asked = AccessRequest(
            "write", request.topic, request.user, request.client, message=message, environment=e
        )
        content = CapabilityPart(capabilities).judge(asked).content
        if content is None:
            return None
        payload = to_json(content)
        return request._replace(payload=payload, rest={**request.rest, "size": len(payload)})

    def _is_welcome(self, topic: str, made: Reshaped) -> bool:
        """Say whether what transformations made can be published: no command, and not too long."""
        own = ((topic, made.payload or b""),)
        concerns = self._rules.authorizer.capabilities.concerns
        return not any(
            self._rules.answers.is_among(there) or len(payload) > self._longest
            for there, payload in (*own, *made.copies)
        ) and not any(concerns(there) for there, _ in made.copies)

    def publish(self, session: Session, packet: Publish) -> PublishResult | PendingResult:
        """Decide on a message of a client; let the event that it is take effect."""
        topic = packet.topic
        watched = self.detection.watched_topics.matches(topic)
        if not watched and not self._decides(topic) and not self._rules.keeps_out(session.user):
            return ALWAYS_ACCEPTED
        result = self._publish(session, packet)
        if _awaits_leader(result):
            return self._when_current(session, packet)
        if isinstance(result, PublishResult) and result is not ALWAYS_ACCEPTED:
            recent, outcome = self._denials.decisions, result.outcome
            if outcome is PublishOutcome.DENIED:
                recent.publication(session, packet.topic, outcome.value, result.rule)
            elif outcome is PublishOutcome.ACCEPTED and recent.takes():
                recent.publication(session, packet.topic)
        return result

    def _publish(self, session: Session, packet: Publish) -> PublishResult | PendingResult:
        topic = packet.topic
        detection = self.detection
        watched = detection.watched_topics.matches(topic)
        user = session.user
        fingerprint = fingerprint_of(user, session.client_id, packet) if watched else None
        request = PublishRequest(
            user,
            session.client_id,
            topic,
            packet.payload,
            packet_fields(packet),
            self._place,
            fingerprint,
        )
        if watched and detection.reload.busy:
            return self._after_reload(session, packet)
        forced = self._force(request)
        if forced is not None:
            request = forced
        advertised = self._rules.is_advertised(session, topic)
        reshaped = self._reshape(request)
        if isinstance(reshaped, PublishResult):
            return reshaped
        if forced is not None and reshaped is None:
            reshaped = _Change(Reshaped(forced.payload, keeps_properties=True), CAPABILITY)
        if watched and not detection.is_alive():
            follower = detection.follower
            if not follower.asks:
                return NO_LEADER
            refused = self._refuse_here(request, advertised=advertised)
            return refused or self._submit(follower.submit(request), request, reshaped)
        result = self._decide(request, watched=watched, advertised=advertised)
        result = self._with_change(result, request, reshaped)
        if detection.leader.pending and result.accepted:
            return self._when_replicated(result)
        return result

    async def _submit(
        self, pending: PendingResult, request: PublishRequest, change: _Change | None
    ) -> PublishResult:
        """Wait for the leader's word on a message that transformations have changed here."""
        return self._with_change(await pending, request, change)

    def _with_change(
        self, result: PublishResult, request: PublishRequest, change: _Change | None
    ) -> PublishResult:
        """Return a result with what is published instead, which counts where it may pass."""
        if change is None:
            return result
        if result.accepted:
            self._note(request, change)
        return result._replace(reshaped=change.made)

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
        self,
        request: PublishRequest,
        *,
        watched: bool,
        submission: SubmissionId | None = None,
        advertised: bool = True,
    ) -> PublishResult:
        """Decide on a message, and let the event that it is take effect, in one step."""
        detection, authorizer = self.detection, self._rules.authorizer
        access = authorizer.access
        topic = request.topic
        now = self._clock.now()
        message = Message(
            topic, request.payload, user=request.user, client=request.client, rest=request.rest
        )
        e = make_environment(now, request.place)
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
                access.principal(request.user, request.client).attributes,
                access.about(message),
                e,
                ahead=self._clock.ahead,
            )
            try:
                prepared = detection.engine.prepare(seen, now)
                self._leave_out(prepared, message)
                record = prepared.record() if prepared.bound else b""
            except Exception as error:  # noqa: BLE001 - whatever it is, it was no event
                _log.warning("a message could not be looked at", error=error)
                return PublishResult(PublishOutcome.INVALID_EVENT)
        decision = authorizer.authorize(
            AccessRequest(
                "write",
                topic,
                request.user,
                request.client,
                message=message,
                environment=e,
                situations=detection.board,
                advertised=advertised,
            )
        )
        if not decision:
            return self._refuse(decision)
        if decision.applied is not None:
            publisher = Session(request.client, request.user or ANONYMOUS, 0)
            self._denials.emergency(publisher, decision)
        if prepared is None or not prepared.bound:
            if not repeated:
                lasting = (
                    not watched
                    and decision.reshaping is None
                    and not self._rules.advertisements.are_needed(topic)
                    and not self._rules.contents.types.are_checked(topic)
                )
                return PublishResult(lasting=lasting and is_lasting(decision, access, topic))
            # It took effect before: the journal has it with what was added up to now.
            ticket = detection.journal.added
        else:
            try:
                ticket = detection.commit(prepared, record, submission, fingerprint)
            except UnavailableError:
                return NO_LEADER
        return PublishResult(journal=detection.journal, ticket=ticket)

    def _refuse_here(self, request: PublishRequest, *, advertised: bool) -> PublishResult | None:
        """Refuse by what the leader does not know: a session's roles and advertisements."""
        authorizer = self._rules.authorizer
        if advertised and not authorizer.access.roles.in_use:
            return None
        message = Message(
            request.topic,
            request.payload,
            user=request.user,
            client=request.client,
            rest=request.rest,
        )
        decision = authorizer.authorize(
            AccessRequest(
                "write",
                request.topic,
                request.user,
                request.client,
                message=message,
                environment=make_environment(self._clock.now(), request.place),
                situations=self.detection.board,
                advertised=advertised,
            )
        )
        if decision or decision.depends & Depends.SITUATION:
            return None
        return PublishResult(PublishOutcome.DENIED, decision.rule)

    def _leave_out(self, prepared: PreparedStep, message: Message) -> None:
        """Leave out events for purposes that whom the message is about has opted out of."""
        if prepared.bound and self._rules.consent.concern(message.topic):
            forbid = self._rules.consent.forbid_event
            prepared.bound = [
                it for it in prepared.bound if not forbid(it[0].name, message.topic, message)
            ]

    def _refuse(self, decision: Decision) -> PublishResult:
        # It may turn out otherwise as soon as the situations are known.
        if self.detection.follower.awaiting_leader and decision.depends & Depends.SITUATION:
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
        detection = self.detection
        engine = detection.engine
        if engine is None:
            return False
        if not detection.watched_topics.matches(topic):
            return True
        now = self._clock.now()
        message = Message(topic, payload, user=ACTIONS)
        about = self._rules.authorizer.access.about(message)
        e = make_environment(now, self._place)
        # Actions use this gateway's clock: whatever they tell needs no `ahead`.
        packet = Packet(topic, message.t, _NOBODY, about, e, depth=depth)
        try:
            prepared = engine.prepare(packet, now)
            self._leave_out(prepared, message)
            if prepared.bound:
                detection.commit(prepared, prepared.record())
        except Exception as error:  # noqa: BLE001 - as above
            _log.warning("a message of an action could not be looked at", error=error)
            return False
        return True


def _awaits_leader(result: PublishResult | PendingResult) -> bool:
    return isinstance(result, PublishResult) and result.outcome is PublishOutcome.AWAITING_LEADER
