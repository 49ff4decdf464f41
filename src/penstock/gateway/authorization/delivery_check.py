"""Decides on deliveries: one message to one client, through the subscriptions the broker names.

    packet ──▶ stamp ──▶ for each subscription: `Authorizer.authorize` ──▶ DeliveryDecision

Rules that hold here:
- One subscription that lets it pass suffices; the client's own identifiers of all that do
  stand in the properties that it is sent with.
- Each is one synchronous step: nothing comes between reading situations and acting on them.
- What depends on situations, on the time, or on what is in a message is decided for each
  message. Only what depends on none of them is `lasting`.
- A message that goes to many readers comes once for each, and they come close together: what
  conditions see of the last few, payloads parsed, is kept. Each reader is decided on anew.
- No Local is the broker's to keep, except for what it kept of messages that came to it on a
  connection of the gateway's own: their stamp names the client.
- Where preferences exist, a message without a stamp is nobody's to read: nobody can tell
  whose preferences hold.
- What would be denied by situations that are not known for the moment waits until they are
  known or lost. Definitions that cannot be compiled deny everything.
- What transformations change is made when it is delivered, however the message came here: it
  may have been retained, queued, sent again, or a will. Where it cannot be made, nothing leaves.
- Content filters are asked about what leaves: else they would tell what a mask hides.
- A message through several subscriptions is changed as the first that lets it pass says; the
  identifiers of those that say otherwise are left out.
- What comes sealed is opened first, and decided on as it was published; each by itself.
- `DecisionCache` keeps what is lasting, by topic and property list. What may pass is kept as the
  finished property list to send, in `passing`; what may not, with the rule that denies it.
- Every change of the rules, and every change of the client's subscriptions, forgets all.
- As many as a client may need are kept, and none that is long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.gateway.authorization.credentials import Arrived, CredentialError, ReplayError
from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.request_context import (
    KEPT_APART,
    Stamp,
    StampReader,
    is_lasting,
    make_environment,
    packet_fields,
    trim,
)
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.counters import DECISION
from penstock.gateway.detection.engine_host import EngineHost
from penstock.gateway.event_loop import Clock
from penstock.gateway.session import NO_LOCAL, Session
from penstock.model.topics import matches
from penstock.mqtt import Publish, encode_subscription_identifiers
from penstock.policy.access.emergencies import NO_SITUATIONS, Situations
from penstock.policy.access.requests import AccessRequest, Message
from penstock.policy.consent import DENYING
from penstock.policy.decision import Decision, Depends, Part, Reshaped, Reshaping, Seen
from penstock.policy.purposes.subscriptions import Subscription
from penstock.trust.keys import TrustError

_SAMPLE: Final = 64
_RECENT: Final = 8
_LARGE: Final = 2
_LONGEST: Final = 65_536
"""Of longer messages fewer are kept: what was parsed of one may take twenty times its size."""
_NAMED: Final = frozenset(
    {
        Part.POLICIES,
        Part.PREFERENCES,
        Part.EMERGENCIES,
        Part.CAPABILITIES,
        Part.INTERACTION,
        Part.CONTENT,
    }
)
_UNENFORCEABLE: Final = "definitions"
_DORMANT: Final = "dormant subscription"
_REASONS: Final = frozenset({"policy", "consent", "interaction", "sealed", "signed", "replayed"})


class Refusal(NamedTuple):
    """What denies a delivery: in a word for counters, and the name of the rule."""

    why: str
    rule: str

    @property
    def reason(self) -> str:
        """The word for the audit log."""
        return self.why if self.why in _REASONS else "purpose"


_UNKNOWN: Final = Refusal("unknown_subscription", "")
_NOTHING: Final = Refusal("", "")
NOT_ASKED: Final = Refusal("right", "administer")
"""An answer to a question that a client may not ask, or did not subscribe to."""
OWN: Final = Refusal("own", "no local")
"""A client's own message, where it subscribed with No Local (MQTT5 3.8.3.1)."""
OTHER_EVENT: Final = Refusal("content", "content filter")
"""A message that matches none of the content filters."""
UNASKED: Final = frozenset({NOT_ASKED, OWN, OTHER_EVENT})
"""What is refused to nobody: the client did not ask for it."""
_CONTENT: Final = attrgetter("content")
_IDENTIFIER: Final = attrgetter("identifier")
_Seen = tuple[Message | None, Mapping[str, Any], Situations]
_UNSEEN: Final[_Seen] = (None, {}, NO_SITUATIONS)
"""What is looked at where neither policies nor preferences decide."""


class Change(NamedTuple):
    """What transformations do to a message that may be sent."""

    reshaping: Reshaping
    through: tuple[Subscription, ...]
    """The subscriptions that let it pass, what they ask of its content aside."""


class DeliveryDecision(NamedTuple):
    """What becomes of a delivery."""

    properties: bytes | None = None
    """The properties to send it with, None where it may not be sent."""
    refusal: Refusal = _NOTHING
    """What denies it, where it may not be sent."""
    lasting: bool = False
    """Whether the same holds for each message with this topic and property list."""
    awaiting_leader: bool = False
    """Whether it cannot be decided until the situations are known again."""
    change: Change | None = None
    """What transformations do to each such message: it has no properties before that is done."""
    sent: Publish | None = None
    """What transformations have made of the message: sent in its place."""


_AWAITING_LEADER: Final = DeliveryDecision(awaiting_leader=True)
_SEALED: Final = DeliveryDecision(None, Refusal("sealed", "sealed stream"))
_NOT_BELIEVED: Final = DeliveryDecision(None, Refusal("signed", "signed stream"))
_REPLAYED: Final = DeliveryDecision(None, Refusal("replayed", "signed stream"))


class DeliveryCheck:
    """Asks the authorizer about deliveries, with the state of this moment."""

    def __init__(
        self,
        rules: Rules,
        detection: EngineHost,
        clock: Clock,
        denials: Denials,
        place: str | None = None,
    ) -> None:
        self.credentials = rules.credentials
        self.rules = rules
        self._detection = detection
        self._clock = clock
        self._denials = denials
        self._place = place
        self._stamps = StampReader()
        self._count = 0
        self._seen_at = -1
        self._environment: Mapping[str, Any] = {}
        self._recent: deque[tuple[tuple[Any, ...], Message]] = deque(maxlen=_RECENT)
        self._large: deque[tuple[tuple[Any, ...], Message]] = deque(maxlen=_LARGE)

    # One function on purpose: on the way of every uncached delivery calls cost more than they tidy.
    def decide(  # noqa: C901, PLR0911, PLR0912
        self, session: Session, packet: Publish
    ) -> DeliveryDecision:
        """Decide on a delivery; what `change` says is to be carried out before it is sent."""
        self._count += 1
        if not self._count % _SAMPLE:
            return self._observe(session, packet)
        rules = self.rules
        topic, properties = packet.topic, packet.properties
        if not rules.enforceable or topic.startswith(rules.answers.prefix):
            return self._decide_apart(session, packet)
        stamp = self._stamps.read(properties.reserved)
        user, client, held = session.user, session.client_id, session.by_number
        named: list[Subscription] = []
        looks = rules.decides_reads
        for number in properties.subscription_identifiers:
            if number in held:
                named.append(held[number])
                looks = looks or held[number].content is not None
        if stamp.client == client and named:
            named = [it for it in named if not it.options & NO_LOCAL]
            if not named:
                return DeliveryDecision(None, OWN, lasting=True)
        authorizer = rules.authorizer
        seen = self._see(packet, stamp, named) if looks else _UNSEEN
        message, environment, situations = seen
        passed = waits = False
        reshaping: Reshaping | None = None
        through: list[Subscription] = []
        lasting = rules.remembers
        refused: Decision | None = None
        for subscription in named:
            request = AccessRequest(
                "read",
                topic,
                user,
                client,
                subscription.ap,
                stamp.purposes,
                subscription,
                message,
                environment,
                situations,
            )
            decision = authorizer.authorize(request)
            if lasting and decision.depends:
                lasting = is_lasting(decision, authorizer.access, topic, KEPT_APART)
            if decision.allowed:
                if not passed:
                    passed, reshaping = True, decision.reshaping
                elif decision.reshaping is not reshaping:
                    continue  # through this one it would be another message
                through.append(subscription)
                if decision.applied is not None:
                    self._denials.emergency(session, decision)
            elif decision.part in _NAMED:
                refused = _weigh(refused, decision)
                waits = waits or self._awaits_leader(decision)
        if waits:
            return _AWAITING_LEADER
        if not passed:
            refusal = self._name_refusal(session, packet, seen, refused)
            return DeliveryDecision(None, refusal, lasting)
        if reshaping is None:
            return DeliveryDecision(properties.kept + _number(through), _NOTHING, lasting)
        change = Change(reshaping, tuple(through))
        return DeliveryDecision(None, _NOTHING, lasting, change=change)

    def note(self, session: Session, packet: Publish, decision: DeliveryDecision) -> None:
        """Keep a decision for people who ask, as far as it is one to note."""
        recent, refusal = self._denials.decisions, decision.refusal
        if decision.awaiting_leader or refusal in UNASKED:
            return
        if refusal is _NOTHING and not recent.takes():
            return
        properties = packet.properties
        stamp = self._stamps.read(properties.reserved)
        numbers = properties.subscription_identifiers
        recent.delivery(session, packet.topic, numbers, stamp, refusal.why, refusal.rule)

    def open(
        self, session: Session, packet: Publish, connection: Arrived
    ) -> Publish | DeliveryDecision:
        """Return a message as it was published, or why it is not believed or does not open."""
        try:
            return self.credentials.check(
                packet, (session.principal, session.client_id), connection
            )
        except ReplayError:
            return _REPLAYED
        except (CredentialError, TrustError):
            return _NOT_BELIEVED
        except PenstockError:
            return _SEALED

    def is_vouched(self, packet: Publish) -> bool:
        """Say whether each message of a topic is looked at, before it is decided on."""
        return self.credentials.concerns(packet.topic)

    def delivered(self, session: Session, packet: Publish) -> None:
        """Take note that a message was decided on, as it came: it must not come again."""
        self.credentials.deliver(packet, (session.principal, session.client_id))

    def now(self) -> int:
        """Return the time, in milliseconds since 1970."""
        return self.rules.clock()

    def carry_out(self, session: Session, packet: Publish, change: Change) -> DeliveryDecision:
        """Change a message as transformations say; where that cannot be done, deny it."""
        reshaping = change.reshaping
        through = change.through
        stamp = self._stamps.read(packet.properties.reserved)
        message = self._make_message(packet, stamp)
        made = message.reshaped.get(reshaping)
        if made is None:
            e = {} if reshaping.fixed else self._see(packet, stamp, through)[1]
            made = self._reshape(session, message, change, e)
            if reshaping.fixed:
                message.reshaped[reshaping] = made
        rule = reshaping.name
        if not isinstance(made, Reshaped) or made.payload is None:
            return DeliveryDecision(None, Refusal("interaction", rule))
        topic = made.topic
        if any(it.content is not None for it in through):
            leaving = self._see_leaving(packet, message, made, reshaping)
            matches = self.rules.authorizer.matches
            through = tuple(
                it for it in through if it.content is None or matches(it.content, leaving)
            )
            if not through:
                return DeliveryDecision(None, OTHER_EVENT)
        if topic is not None and not self._may_become(topic, through):
            return DeliveryDecision(None, Refusal("interaction", rule))
        sent = Publish(
            packet.first,
            packet.topic_field,
            packet.topic,
            packet.packet_id,
            packet.properties,
            made.payload,
        )
        if topic is not None:
            sent.rename(topic)
        self._denials.transformed(session, rule)
        kept = packet.properties.kept if made.keeps_properties else trim(packet.properties)
        return DeliveryDecision(kept + _number(through), sent=sent)

    def _see_leaving(
        self, packet: Publish, message: Message, made: Reshaped, reshaping: Reshaping
    ) -> Message:
        """Return what content filters are asked about: what leaves, and nothing else."""
        key = (OTHER_EVENT, reshaping)
        leaving: Message | None = message.reshaped.get(key)
        if leaving is None:
            rest = packet_fields(packet) if made.keeps_properties else None
            leaving = Message(made.topic or packet.topic, made.payload or b"", rest=rest)
            if reshaping.fixed:
                message.reshaped[key] = leaving
        return leaving

    def _reshape(
        self, session: Session, message: Message, change: Change, e: Mapping[str, Any]
    ) -> Reshaped | str:
        access = self.rules.authorizer.access

        def see() -> Seen:
            s = access.principal(session.user, session.client_id).attributes
            return s, access.about(message), {**e, "purpose": change.through[0].ap}, message.t

        try:
            return change.reshaping.apply(message, see)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, nothing leaves
            return f"error {type(error).__name__}"

    def _may_become(self, topic: str, through: Iterable[Subscription]) -> bool:
        """Tell whether a client may get a message on a topic that it was not published on."""
        # MQTT5 3.3.2.1: only on one that it has subscribed to.
        return not self.rules.answers.is_among(topic) and any(
            matches(it.filter, topic) for it in through
        )

    def refuse_subscription(self, session: Session, filter_: str) -> str | None:
        """Name the restriction that does not permit a subscription now, None where none does."""
        authorizer = self.rules.authorizer
        if not authorizer.interaction.in_use:
            return None
        now = self._clock.now()
        self._detection.catch_up(now)
        return authorizer.refuse_by_context(
            session.user,
            session.client_id,
            filter_,
            make_environment(now, self._place),
            self._detection.board,
        )

    def _decide_apart(self, session: Session, packet: Publish) -> DeliveryDecision:
        """Decide without the authorizer: where it is not complete, and on answers to questions.

        An answer is for those who may ask the question, and have named such topics.
        """
        rules, properties = self.rules, packet.properties
        if not rules.enforceable:
            return DeliveryDecision(None, Refusal("purpose", _UNENFORCEABLE), rules.remembers)
        named = map(session.by_number.get, properties.subscription_identifiers)
        listening = [it for it in named if it is not None and rules.answers.is_filter(it.text)]
        if not listening or not rules.answers.may_read(rules.rights(session), packet.topic):
            return DeliveryDecision(None, NOT_ASKED)
        own = [it.identifier for it in listening if it.identifier]
        identifiers = encode_subscription_identifiers(own) if own else b""
        return DeliveryDecision(properties.kept + identifiers)

    def _observe(self, session: Session, packet: Publish) -> DeliveryDecision:
        """Decide, and tell how long it took."""
        started = time.perf_counter()
        decision = self.decide(session, packet)
        DECISION.observe(time.perf_counter() - started)
        return decision

    def _see(self, packet: Publish, stamp: Stamp, named: Sequence[Subscription]) -> _Seen:
        """Return what is looked at: the message, the environment and the situations of now.

        Where neither policies nor preferences decide, it is the message alone, and only where it
        matters whom it is about, or what is in it.
        """
        authorizer = self.rules.authorizer
        decides = (
            authorizer.access.decides["read"]
            or (authorizer.capabilities.in_use and authorizer.capabilities.concerns(packet.topic))
            or (
                authorizer.interaction.in_use
                and authorizer.interaction.concerns("read", packet.topic)
            )
        )
        if not decides:
            consent = self.rules.consent
            concerned = consent.opt_outs.by_purpose and consent.concern(packet.topic)
            if not concerned and not any(map(_CONTENT, named)):
                return _UNSEEN
            return self._make_message(packet, stamp), {}, NO_SITUATIONS
        now = self._clock.now()
        self._detection.catch_up(now)
        if now != self._seen_at:
            self._seen_at, self._environment = now, make_environment(now, self._place)
        message = None
        if stamp.stamped or not self.rules.authorizer.access.has_preferences:
            message = self._make_message(packet, stamp)
        return message, self._environment, self._detection.board

    def _make_message(self, packet: Publish, stamp: Stamp) -> Message:
        """Return the message as conditions see it: a recent one, where this is a copy of it."""
        properties = packet.properties
        # All that a condition can see of it: copies differ in the subscriptions alone.
        wanted = (
            packet.payload,
            packet.topic,
            packet.first,
            properties.user,
            properties.content_type,
            stamp,
        )
        recent = self._recent if len(packet.payload) <= _LONGEST else self._large
        for key, message in recent:
            if key == wanted:
                return message
        message = Message(
            packet.topic,
            packet.payload,
            user=stamp.user,
            client=stamp.client,
            behalf=stamp.behalf,
            rest=packet_fields(packet),
        )
        recent.appendleft((wanted, message))
        return message

    def _name_refusal(
        self, session: Session, packet: Publish, seen: _Seen, refused: Decision | None
    ) -> Refusal:
        """Name what denies: a policy where purposes allow, else by the first that is known.

        Known are subscriptions that sleep, too.
        """
        if refused is not None and refused.part is Part.CONTENT:
            return OTHER_EVENT
        if refused is not None:
            why = "interaction" if refused.part is Part.INTERACTION else "policy"
            return Refusal(why, refused.rule)
        properties = packet.properties
        message, environment, situations = seen
        for number in properties.subscription_identifiers:
            known = session.purpose_under(number)
            if known is not None:
                request = AccessRequest(
                    "read",
                    packet.topic,
                    session.user,
                    session.client_id,
                    known[0],
                    self._stamps.read(properties.reserved).purposes,
                    session.by_number.get(number),
                    message,
                    environment,
                    situations,
                )
                rule = self.rules.authorizer.name_purpose_denial(request)
                return Refusal("consent" if rule in DENYING else "purpose", rule or _DORMANT)
        return _UNKNOWN

    def _awaits_leader(self, decision: Decision) -> bool:
        """Say whether a refusal may turn out otherwise as soon as the situations are known."""
        return self._detection.follower.awaiting_leader and bool(
            decision.depends & Depends.SITUATION
        )


def _number(through: Iterable[Subscription]) -> bytes:
    """Encode the client's own identifiers of the subscriptions that let a message pass."""
    own = list(filter(None, map(_IDENTIFIER, through)))
    return encode_subscription_identifiers(own) if own else b""


def _weigh(before: Decision | None, decision: Decision) -> Decision:
    """Return which of two denials is told: that of a policy before that of a content filter."""
    return decision if before is None or before.part is Part.CONTENT else before


_CACHED: Final = 2_048
_LONGEST_KEY: Final = 256

DeliveryKey = tuple[str, bytes]
"""What a lasting decision depends on: the topic, and the property list as it came."""


class DecisionCache:
    """The cache of one connection; `passing` is looked into on the way of every message."""

    __slots__ = ("_changes", "_check", "_denied", "connection", "passing")

    def __init__(self, check: DeliveryCheck) -> None:
        self.passing: dict[DeliveryKey, bytes] = {}
        self._denied: dict[DeliveryKey, DeliveryDecision] = {}
        self._changes: dict[DeliveryKey, Change] = {}
        self._check = check
        self.connection = Arrived(check.now())

    def decide(self, session: Session, packet: Publish, key: DeliveryKey) -> DeliveryDecision:
        """Decide on a delivery that is not `passing`, and keep what holds for the next one."""
        denied = self._denied.get(key)
        if denied is not None:
            return denied
        sealed = packet
        if not self._check.rules.vouches:
            return self._decide(session, packet, packet, key, vouched=False)
        opened = self._check.open(session, packet, self.connection)
        if isinstance(opened, DeliveryDecision):
            return opened
        packet = opened
        vouched = self._check.is_vouched(sealed)
        decision = self._decide(session, sealed, packet, key, vouched=vouched)
        if not decision.awaiting_leader:
            self._check.delivered(session, sealed)
        return decision

    def _decide(
        self, session: Session, sealed: Publish, packet: Publish, key: DeliveryKey, *, vouched: bool
    ) -> DeliveryDecision:
        change = self._changes.get(key)
        if change is not None:
            return self._check.carry_out(session, packet, change)
        decision = self._check.decide(session, packet)
        self._check.note(session, packet, decision)
        if packet is not sealed and decision.properties is not None:
            # Each is opened by itself: nothing of it passes as it came.
            return decision._replace(sent=packet)
        change = decision.change
        # What is vouched for is so by itself: the next one with these properties may be forged.
        if decision.lasting and len(key[1]) <= _LONGEST_KEY and not vouched:
            if len(self.passing) + len(self._denied) + len(self._changes) >= _CACHED:
                self.forget()
            if change is not None:
                self._changes[key] = change
            elif decision.properties is None:
                self._denied[key] = decision
            else:
                self.passing[key] = decision.properties
        return decision if change is None else self._check.carry_out(session, packet, change)

    def forget(self) -> None:
        """Forget what was decided."""
        self.passing.clear()
        self._denied.clear()
        self._changes.clear()
