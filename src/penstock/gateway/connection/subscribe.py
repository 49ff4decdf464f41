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
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.clock import boot_clock
from penstock.errors import PenstockError
from penstock.gateway.connection.replies import within
from penstock.gateway.connection.subscription_lifecycle import (
    ask_broker,
    broker_filter,
    broker_filter_of,
    drop,
    keep,
)
from penstock.mqtt import (
    NO_PROPERTIES,
    V5,
    Properties,
    ReasonCode,
    RequestedSubscription,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt.codes import FAILURE
from penstock.policy.purposes.commands import PurposedFilter, parse_subscribe
from penstock.policy.purposes.declared_purposes import RULE as UNDECLARED
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.sessions import StoredSubscription

if TYPE_CHECKING:
    from penstock.gateway.connection.downstream import Downstream

AP_PROPERTY = "purpose-ap"
_AT_ONCE = 100
_BREATH = 256
_ENDED = 0


async def subscribe(client: Downstream, packet: Subscribe) -> None:
    """Carry out a SUBSCRIBE."""
    request = _Request(client, packet)
    # The last word on a text counts; what is said thousands of times is decided once.
    last = {wanted.filter: place for place, wanted in enumerate(packet.subscriptions)}
    for count, place in enumerate(sorted(last.values()), 1):
        request.decide(place, packet.subscriptions[place])
        if not count % _BREATH:
            await asyncio.sleep(0)
    await request.carry_out()
    reasons = tuple(request.reasons[last[wanted.filter]] for wanted in packet.subscriptions)
    properties = NO_PROPERTIES
    if request.text and client.problems:
        properties = Properties(reason_string=request.text)
    told = Suback(packet.packet_id, reasons, properties)
    client.send(within(client, told, Suback(packet.packet_id, reasons)))


@dataclass(slots=True)
class _Grant:
    """A filter that the broker is to be asked for, and the places that asked for it."""

    places: list[int]
    wanted: RequestedSubscription
    subscription: Subscription
    held: StoredSubscription


class _Request:
    """One SUBSCRIBE on its way."""

    def __init__(self, client: Downstream, packet: Subscribe) -> None:
        self.client = client
        self.reasons = [0] * len(packet.subscriptions)
        self.text = ""
        self._identifier = (packet.properties.subscription_identifiers or (0,))[0]
        self._purposes = [it for name, it in packet.properties.user if name == AP_PROPERTY]
        self._granted: dict[str, _Grant] = {}
        self._ended: list[tuple[str, str]] = []

    def decide(self, place: int, wanted: RequestedSubscription) -> None:
        """Decide on one filter."""
        gateway = self.client.gateway
        session = self.client.session
        rules = gateway.rules
        try:
            asked = self._read(wanted.filter)
        except PenstockError as error:
            gateway.denials.refused(session, "malformed")
            self._refuse(place, ReasonCode.TOPIC_FILTER_INVALID, "malformed", str(error))
            return
        text = asked.subscribed.text
        if boot_clock() > rules.fresh_until:
            stale = "the definitions are stale"
            self._refuse(place, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "stale", stale)
            return
        limits = gateway.limits
        if len(text.encode()) > limits.topic_bytes or text.count("/") >= limits.topic_levels:
            self._refuse(place, ReasonCode.TOPIC_FILTER_INVALID, "topic", "the filter is too long")
            return
        if text not in session.numbers and len(session.numbers) >= limits.subscriptions:
            self._refuse(place, ReasonCode.QUOTA_EXCEEDED, "rate", "too many subscriptions")
            return
        old = broker_filter_of(session, text)
        made, rule, reason = self._admit(asked, wanted)
        session.dormant.pop(text, None)
        self.client.forget_verdicts()
        earlier = self._granted.pop(text, None)
        if old is not None and (
            made is None or old != broker_filter(made.text, made.ap, session.principal)
        ):
            self._ended.append((text, old))
        if made is None:
            if earlier is not None:
                for before in earlier.places:
                    self.reasons[before] = earlier.wanted.qos
            session.drop(text)
            gateway.denials.subscription(session, rule)
            self._refuse(place, ReasonCode.NOT_AUTHORIZED, "purpose", reason)
            return
        places = [*(earlier.places if earlier else ()), place]
        self._granted[text] = _Grant(places, wanted, made, session.hold(made))

    def _admit(
        self, asked: PurposedFilter, wanted: RequestedSubscription
    ) -> tuple[Subscription | None, str, str]:
        """Ask the rules: the subscription, or None, the rule that refuses it, and why."""
        gateway = self.client.gateway
        client_id = self.client.session.client_id
        engine = gateway.rules.engine
        purpose = asked.ap
        if purpose is None:
            found = engine.presubscriptions.find(client_id, asked.subscribed)
            purpose = found.ap if found else None
        objection = gateway.rules.declared.object_to(purpose)
        if objection:
            engine.unsubscribe(client_id, asked.subscribed.text)
            return None, UNDECLARED, objection
        admission = engine.subscribe(
            client_id,
            asked.subscribed.text,
            asked.ap,
            wanted.qos,
            options=wanted.options(V5),
            identifier=self._identifier,
            owner=self.client.session.principal,
        )
        return admission.subscription, admission.decision.rule, admission.decision.reason

    async def carry_out(self) -> None:
        """Store what was decided, then ask the broker."""
        client = self.client
        granted = list(self._granted.values())
        gone = [text for text, _ in self._ended if text not in self._granted]
        await keep(client, [grant.held for grant in granted], gone)
        upstream = client.broker()
        for _, filter_ in self._ended:
            await upstream.requests.unsubscribe(Unsubscribe(1, (filter_,)))
        lost: list[str] = []
        for start in range(0, len(granted), _AT_ONCE):
            some = granted[start : start + _AT_ONCE]
            answers = await asyncio.gather(
                *(
                    ask_broker(upstream, it.subscription, it.held.number, it.wanted.retain_handling)
                    for it in some
                )
            )
            for grant, reason in zip(some, answers, strict=True):
                for place in grant.places:
                    self.reasons[place] = reason
                if reason >= FAILURE:
                    drop(client, grant.subscription.text)
                    lost.append(grant.subscription.text)
        await keep(client, [], lost)

    def _read(self, text: str) -> PurposedFilter:
        asked = parse_subscribe(text, self.client.gateway.notation)
        if not self._purposes:
            return asked
        if len(self._purposes) > 1 or asked.ap is not None:
            raise PenstockError(
                "more than one purpose is given", fix="subscribe for exactly one purpose"
            )
        return replace(asked, ap=self.client.gateway.notation.read_purpose(self._purposes[0]))

    def _refuse(self, place: int, reason: ReasonCode, why: str, text: str) -> None:
        self.client.gateway.counters.denied("subscription", why)
        self.reasons[place] = int(reason)
        self.text = self.text or text


async def unsubscribe(client: Downstream, packet: Unsubscribe) -> None:
    """Carry out an UNSUBSCRIBE."""
    session = client.session
    reasons = [0] * len(packet.filters)
    asked: list[tuple[int, str, str]] = []
    for place, text in enumerate(packet.filters):
        try:
            named = parse_subscribe(text, client.gateway.notation).subscribed
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
                drop(client, text)
                ended.append(text)
        await keep(client, [], ended)
    client.send(Unsuback(packet.packet_id, tuple(reasons)).encode(client.version))
