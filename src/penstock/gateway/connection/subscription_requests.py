"""SUBSCRIBE and UNSUBSCRIBE: what reaches the broker, and what the client is answered.

    SUBSCRIBE f1 f2 f3 ──▶ purposes ──▶ f2 refused        ──▶ its old one ended
                                   └──▶ f1, f3 permitted  ──▶ store ──▶ broker, one by one
                                                                          └──▶ SUBACK in order

Rules that hold here:
- Each permitted filter goes to the broker under the gateway's own number for it, so that
  a delivery tells which subscription it belongs to. The client's options are untouched.
- What a subscription stands for holds from the moment it is decided. For a session that
  outlives its connection it is stored before the broker is asked.
- A refused re-subscription ends the old subscription.
- Of a filter that a packet names several times, the last word counts.
- A packet names at most as many filters as a client may have, or `FILTERS` where these are
  fewer: each costs a decision, a row and a question to the broker, and one client must not
  keep the loop from the others. A longer packet ends the connection before any of them is
  looked at.
- So does one whose answer, a byte for each filter, would be larger than the client takes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from penstock.clock import boot_clock
from penstock.errors import PenstockError
from penstock.gateway.connection.broker_connection import BrokerConnection
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.context import ConnectionContext
from penstock.gateway.connection.subscription_lifecycle import (
    SubscriptionLifecycle,
    ask_broker,
    broker_filter,
    broker_filter_of,
    made_filter,
)
from penstock.mqtt import (
    NO_PROPERTIES,
    V5,
    MqttError,
    Properties,
    ReasonCode,
    RequestedSubscription,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.codes import FAILURE
from penstock.policy.content_filters import ContentError, ContentLimitError
from penstock.policy.purposes.commands import CONTENT_PROPERTY, PurposedFilter, parse_subscribe
from penstock.policy.purposes.settings import Notation
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.sessions import StoredSubscription

AP_PROPERTY = "purpose-ap"
_AT_ONCE = 100
_BREATH = 256
_ENDED = 0
FILTERS = 1_000
"""How many filters a SUBSCRIBE or UNSUBSCRIBE may have in any case."""


class SubscriptionRequests:
    """Carries out what clients ask for: SUBSCRIBE and UNSUBSCRIBE."""

    def __init__(
        self, context: ConnectionContext, notation: Notation, lifecycle: SubscriptionLifecycle
    ) -> None:
        self.context = context
        self.notation = notation
        self.lifecycle = lifecycle

    def check_count(self, client: ClientConnection, filters: int) -> None:
        """Refuse a packet that names too many filters, or whose answer would be too long."""
        most = max(FILTERS, self.context.limits.subscriptions)
        if filters > most:
            raise MqttError(
                f"one packet names {filters} filters; at most {most} are taken",
                reason=ReasonCode.QUOTA_EXCEEDED,
                fix="send several packets",
            )
        room = client.takes.maximum_packet_size
        needed = len(Unsuback(1, (0,) * filters).encode(client.version))
        if needed > room:
            raise MqttError(
                f"the answer for {filters} filters has {needed} bytes; the client takes {room}",
                reason=ReasonCode.PACKET_TOO_LARGE,
                fix="send several packets, or connect with a larger maximum packet size",
            )

    async def subscribe(self, client: ClientConnection, packet: Subscribe) -> None:
        """Carry out a SUBSCRIBE."""
        request = _Request(self, client, packet)
        # The last word on a text counts; what is said thousands of times is decided once.
        last = {wanted.filter: place for place, wanted in enumerate(packet.subscriptions)}
        for count, place in enumerate(sorted(last.values()), 1):
            request.decide(place, packet.subscriptions[place])
            if not count % _BREATH or request.compiled:
                await asyncio.sleep(0)
        await request.carry_out()
        # MQTT5 3.9.3: a reason for each filter, in their order.
        reasons = tuple(request.reasons[last[wanted.filter]] for wanted in packet.subscriptions)
        if client.connect.is_31:
            # MQTT 3.1 cannot be told of a refusal, and must be answered as if it were granted.
            reasons = tuple(
                wanted.qos if reason >= FAILURE else reason
                for wanted, reason in zip(packet.subscriptions, reasons, strict=True)
            )
        properties = NO_PROPERTIES
        if request.text and client.problems:
            properties = Properties(reason_string=request.text)
        told = Suback(packet.packet_id, reasons, properties)
        client.send(client.fit(told, Suback(packet.packet_id, reasons)))

    async def unsubscribe(self, client: ClientConnection, packet: Unsubscribe) -> None:
        """Carry out an UNSUBSCRIBE."""
        session = client.session
        reasons = [0] * len(packet.filters)
        asked: list[tuple[int, str, str]] = []
        for place, text in enumerate(packet.filters):
            try:
                named = parse_subscribe(text, self.notation, answers=True).subscribed
            except PenstockError:
                reasons[place] = int(ReasonCode.TOPIC_FILTER_INVALID)
                continue
            there = broker_filter_of(session, named.text)
            there = there or broker_filter(named.text, None, session.principal)
            asked.append((place, named.text, there))
        if asked:
            request = Unsubscribe(1, tuple(filter_ for _, _, filter_ in asked))
            answer = await client.broker().requests.unsubscribe(request)
            ended: list[str] = []
            for (place, text, _), reason in zip(asked, answer.reasons, strict=True):
                known = text in session.numbers or text in session.dormant
                reasons[place] = _ENDED if known and reason < FAILURE else reason
                if reason < FAILURE:
                    self.lifecycle.drop(client, text)
                    ended.append(text)
            await self.lifecycle.keep(session, [], ended)
        client.send(Unsuback(packet.packet_id, tuple(reasons)).encode(client.version))


@dataclass(slots=True)
class _Grant:
    """A filter that the broker is to be asked for, and the places that asked for it."""

    places: list[int]
    wanted: RequestedSubscription
    subscription: Subscription
    held: StoredSubscription


class _Request:
    """One SUBSCRIBE on its way."""

    def __init__(
        self, handler: SubscriptionRequests, client: ClientConnection, packet: Subscribe
    ) -> None:
        self.client = client
        self._context = handler.context
        self._notation = handler.notation
        self._lifecycle = handler.lifecycle
        self.reasons = [0] * len(packet.subscriptions)
        self.text = ""
        self._identifier = (packet.properties.subscription_identifiers or (0,))[0]
        self._purposes = [it for name, it in packet.properties.user if name == AP_PROPERTY]
        self._contents = [it for name, it in packet.properties.user if name == CONTENT_PROPERTY]
        self._granted: dict[str, _Grant] = {}
        self._ended: list[tuple[str, str]] = []
        self.compiled = False
        """Whether the last filter had an expression: to compile it takes milliseconds."""

    def decide(self, place: int, wanted: RequestedSubscription) -> None:
        """Decide on one filter."""
        context = self._context
        session = self.client.session
        rules = context.rules
        try:
            asked = self._read(wanted.filter)
        except PenstockError as error:
            context.denials.refused(session, "malformed")
            self._refuse(place, ReasonCode.TOPIC_FILTER_INVALID, "malformed", str(error))
            return
        self.compiled = asked.content is not None
        text = asked.subscribed.text
        if boot_clock() > rules.fresh_until:
            stale = "the definitions are stale"
            self._refuse(place, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "stale", stale)
            return
        excess = self._find_excess(text, asked.content)
        if excess is not None:
            self._refuse(place, *excess)
            return
        old = broker_filter_of(session, text)
        try:
            made, rule, reason = self._admit(asked, wanted)
        except ContentError as error:
            context.denials.refused(session, "malformed")
            malformed = ReasonCode.TOPIC_FILTER_INVALID
            if isinstance(error, ContentLimitError):
                malformed = ReasonCode.QUOTA_EXCEEDED
            self._refuse(place, malformed, "malformed", str(error))
            return
        session.dormant.pop(text, None)
        self.client.forget_decisions()
        earlier = self._granted.pop(text, None)
        if old is not None and (made is None or old != made_filter(made, session.principal)):
            self._ended.append((text, old))
        if made is None:
            if earlier is not None:
                for before in earlier.places:
                    self.reasons[before] = earlier.wanted.qos
            session.drop(text)
            context.denials.subscription(session, rule)
            self._refuse(place, ReasonCode.NOT_AUTHORIZED, "purpose", reason)
            return
        places = [*(earlier.places if earlier else ()), place]
        self._granted[text] = _Grant(places, wanted, made, session.hold(made))

    def _find_excess(self, text: str, content: str | None) -> tuple[ReasonCode, str, str] | None:
        """Return how a filter exceeds the limits of the client, if it does."""
        limits, session = self._context.limits, self.client.session
        if len(text.encode()) > limits.topic_bytes or text.count("/") >= limits.topic_levels:
            return ReasonCode.TOPIC_FILTER_INVALID, "topic", "the filter is too long"
        if text not in session.numbers and len(session.numbers) >= limits.subscriptions:
            return ReasonCode.QUOTA_EXCEEDED, "rate", "too many subscriptions"
        if content is not None and self._count_contents(text) >= limits.content_filters:
            return ReasonCode.QUOTA_EXCEEDED, "rate", "too many content filters"
        return None

    def _count_contents(self, but: str) -> int:
        """Count the other subscriptions of the client that have a content filter."""
        session = self.client.session
        awake = ((it.text, it.content) for it in session.by_number.values())
        asleep = ((it.filter, it.content) for it in session.dormant.values())
        return sum(
            content is not None and text != but for it in (awake, asleep) for text, content in it
        )

    def _admit(
        self, asked: PurposedFilter, wanted: RequestedSubscription
    ) -> tuple[Subscription | None, str, str]:
        """Ask the rules: the subscription, or None, the rule that refuses it, and why.

        A content filter that is wrong is raised, and changes nothing.
        """
        context = self._context
        session = self.client.session
        client_id = session.client_id
        engine = context.rules.engine
        if asked.answers:
            return self._admit_to_answers(asked, wanted)
        purpose = asked.ap
        if purpose is None:
            found = engine.presubscriptions.find(client_id, asked.subscribed)
            purpose = found.ap if found else None
        refusal = context.rules.authorizer.refuse_subscription(
            session.user, client_id, purpose, asked.subscribed.filter
        )
        if refusal is not None:
            engine.unsubscribe(client_id, asked.subscribed.text)
            return None, refusal.rule, refusal.reason
        restriction = context.delivery_check.refuse_subscription(session, asked.subscribed.filter)
        if restriction is not None:
            engine.unsubscribe(client_id, asked.subscribed.text)
            return None, restriction, "not allowed to subscribe here"
        content = None
        if asked.content is not None:
            content = context.rules.hold_content(
                session, asked.content, asked.subscribed.filter, asked=True
            )
        admission = engine.subscribe(
            client_id,
            asked.subscribed.text,
            asked.ap,
            wanted.qos,
            options=wanted.options(V5),
            identifier=self._identifier,
            owner=session.principal,
            content=content,
        )
        return admission.subscription, admission.decision.rule, admission.decision.reason

    def _admit_to_answers(
        self, asked: PurposedFilter, wanted: RequestedSubscription
    ) -> tuple[Subscription | None, str, str]:
        rules, session = self._context.rules, self.client.session
        if not rules.rights(session).may_ask:
            return None, "administer", "the principal may not ask for reservations"
        options = wanted.options(V5)
        held = StoredSubscription(asked.subscribed.text, 0, None, options, self._identifier)
        return rules.answers.subscribe(session, held, options), "", ""

    async def carry_out(self) -> None:
        """Store what was decided, then ask the broker."""
        client = self.client
        # What a command has ended since it was decided must not be stored behind that command.
        granted = [it for it in self._granted.values() if self._is_held(it.subscription)]
        for grant in self._granted.values():
            for place in grant.places:
                self.reasons[place] = grant.wanted.qos
        gone = [text for text, _ in self._ended if text not in self._granted]
        await self._lifecycle.keep(client.session, [grant.held for grant in granted], gone)
        broker = client.broker()
        for _, filter_ in self._ended:
            await broker.requests.unsubscribe(Unsubscribe(1, (filter_,)))
        lost: list[str] = []
        for start in range(0, len(granted), _AT_ONCE):
            some = granted[start : start + _AT_ONCE]
            answers = await asyncio.gather(
                *(
                    ask_broker(client, it.subscription, it.held.number, it.wanted.retain_handling)
                    for it in some
                )
            )
            for grant, reason in zip(some, answers, strict=True):
                for place in grant.places:
                    self.reasons[place] = reason
                text = grant.subscription.text
                if not self._is_held(grant.subscription):
                    await self._take_back(broker, grant)
                elif reason >= FAILURE:
                    self._lifecycle.drop(client, text)
                    lost.append(text)
        await self._lifecycle.keep(client.session, [], lost)

    def _is_held(self, made: Subscription) -> bool:
        """Say whether a subscription is still what its filter stands for, be it asleep."""
        session = self.client.session
        return made.text in session.dormant or session.find(made.text) is made

    async def _take_back(self, broker: BrokerConnection, grant: _Grant) -> None:
        """End at the broker what a command ended while the broker was asked for it."""
        session, made = self.client.session, grant.subscription
        there = made_filter(made, session.principal)
        if broker_filter_of(session, made.text) != there:
            await broker.requests.unsubscribe(Unsubscribe(1, (there,)))

    def _read(self, text: str) -> PurposedFilter:
        answers = self._context.rules.answers.published
        asked = parse_subscribe(text, self._notation, answers=answers)
        if self._contents and asked.answers:
            raise PenstockError(
                "answers have no content filter", fix=f"leave {CONTENT_PROPERTY} out"
            )
        if self._contents:
            if len(self._contents) > 1 or asked.content is not None:
                raise PenstockError(
                    "more than one content filter is given", fix="join them with &&"
                )
            asked = replace(asked, content=self._contents[0])
        if not self._purposes or asked.answers:
            return asked
        if len(self._purposes) > 1 or asked.ap is not None:
            raise PenstockError(
                "more than one purpose is given", fix="subscribe for exactly one purpose"
            )
        return replace(asked, ap=self._notation.read_purpose(self._purposes[0]))

    def _refuse(self, place: int, reason: ReasonCode, why: str, text: str) -> None:
        self._context.counters.denied("subscription", why)
        self.reasons[place] = int(reason)
        self.text = self.text or text
