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
- A shared subscription goes to the broker under a group name with its purpose in it: a
  group whose members have one purpose, wherever they are connected.
- Of a filter that a packet names several times, the last word counts.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.gateway.answers import within
from penstock.gateway.declared import RULE as UNDECLARED
from penstock.gateway.session import Held, Session
from penstock.model.topics import overlaps, parse_subscribed
from penstock.mqtt import (
    NO_PROPERTIES,
    V5,
    Properties,
    ReasonCode,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from penstock.mqtt import Subscription as Requested
from penstock.mqtt.reasons import FAILURE
from penstock.policy.commands import PurposedFilter, parse_subscribe
from penstock.policy.subscriptions import Subscription
from penstock.store.follower import boot_clock
from penstock.store.sessions import Keep, StoredSubscription

if TYPE_CHECKING:
    from penstock.gateway.downstream import Downstream
    from penstock.gateway.upstream import Upstream

AP_PROPERTY = "purpose-ap"
_NO_RETAINED = 2
_AT_ONCE = 100
_BREATH = 256
_REPLAY = 0
_ENDED = 0
PAUSED = 0x100
"""Beside the options of a stored subscription: the broker was told to end it for now."""


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
    wanted: Requested
    subscription: Subscription
    held: Held


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

    def decide(self, place: int, wanted: Requested) -> None:
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
        if old is not None and (made is None or old != broker_filter(made.text, made.ap)):
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
        self, asked: PurposedFilter, wanted: Requested
    ) -> tuple[Subscription | None, str, str]:
        """Ask the rules: the subscription, or None, the rule that refuses it, and why."""
        gateway = self.client.gateway
        client_id = self.client.session.client_id
        engine = gateway.rules.engine
        purpose = asked.ap
        if purpose is None:
            found = engine.presubscriptions.find(client_id, asked.subscribed)
            purpose = found.ap if found else None
        objection = gateway.declared.object_to(purpose)
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
            await upstream.unsubscribe(Unsubscribe(1, (filter_,)))
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
        there = broker_filter_of(session, named.text) or broker_filter(named.text, None)
        asked.append((place, named.text, there))
    if asked:
        request = Unsubscribe(1, tuple(filter_ for _, _, filter_ in asked))
        answer = await client.broker().unsubscribe(request)
        ended: list[str] = []
        for (place, text, _), reason in zip(asked, answer.reasons, strict=True):
            known = text in session.numbers or text in session.dormant
            reasons[place] = _ENDED if known and reason < FAILURE else reason
            if reason < FAILURE:
                drop(client, text)
                ended.append(text)
        await keep(client, [], ended)
    client.send(Unsuback(packet.packet_id, tuple(reasons)).encode(client.version))


def drop(client: Downstream, text: str) -> None:
    """Forget a subscription."""
    session = client.session
    client.gateway.rules.engine.unsubscribe(session.client_id, text)
    session.drop(text)
    client.forget_verdicts()


async def keep(client: Downstream, put: Iterable[Held], dropped: Iterable[str]) -> None:
    """Make the subscriptions of a session that outlives its connection durable."""
    session = client.session
    if not session.stored:
        return
    change = Keep(
        session.client_id,
        session.holder,
        tuple(
            StoredSubscription(it.text, it.number, it.purpose, it.options, it.identifier)
            for it in put
        ),
        tuple(dropped),
        session.last_number,
    )
    if change.put or change.drop:
        await client.gateway.saver.save(change)


def restore(client: Downstream, stored: Iterable[StoredSubscription]) -> list[Subscription]:
    """Take up the subscriptions of a session that the broker has kept.

    One that the rules of now would refuse sleeps until they change. Returned are those that
    the broker does not have, because they were paused when the session was left.
    """
    session = client.session
    rules = client.gateway.rules
    missing: list[Subscription] = []
    for it in stored:
        session.numbers[it.filter] = it.number
        subscription = rules.restore(session.client_id, it, it.options & ~PAUSED)
        if subscription is None:
            session.dormant[it.filter] = it
            continue
        session.hold(subscription)
        if it.options & PAUSED:
            missing.append(subscription)
    return missing


def wake(client: Downstream, concerned: Iterable[str] | None) -> None:
    """Try again the subscriptions that could not be taken up when the session was.

    All of them, or those that have topics in common with some of these filters.
    """
    dormant = client.session.dormant
    waiting = [it for it in dormant.values() if concerned is None or _meets(it, concerned)]
    for it in waiting:
        del dormant[it.filter]
    for subscription in restore(client, waiting):
        resume(client, subscription)


def _meets(stored: StoredSubscription, filters: Iterable[str]) -> bool:
    mine = parse_subscribed(stored.filter).filter
    return any(overlaps(mine, it) for it in filters)


def pause(client: Downstream, subscription: Subscription) -> None:
    """End at the broker a subscription that is forbidden for now."""
    client.gateway.start_task(_pause(client, subscription))


def resume(client: Downstream, subscription: Subscription) -> None:
    """Make at the broker, once more, a subscription that is allowed again."""
    client.gateway.start_task(_resume(client, subscription))


async def _pause(client: Downstream, subscription: Subscription) -> None:
    held = _held(client, subscription)
    if held is None:
        return
    # Stored first: who takes the session up must know that the broker has it no longer.
    await keep(client, [replace(held, options=held.options | PAUSED)], [])
    if not subscription.active and _held(client, subscription) is not None:
        await client.broker().unsubscribe(
            Unsubscribe(1, (broker_filter(subscription.text, subscription.ap),))
        )


async def _resume(client: Downstream, subscription: Subscription) -> None:
    held = _held(client, subscription)
    if held is None or not subscription.active:
        return
    handling = _REPLAY if client.gateway.replay_retained else _NO_RETAINED
    reason = await ask_broker(client.broker(), subscription, held.number, handling)
    if reason >= FAILURE:
        # It stays marked as paused: who takes the session up tries again.
        client.gateway.log.warning("the broker refused to resume", code=f"0x{reason:02x}")
        return
    # It may have been paused again meanwhile, and marked so.
    if _flows(client, subscription):
        await keep(client, [held], [])


def _flows(client: Downstream, subscription: Subscription) -> bool:
    return subscription.active and _held(client, subscription) is not None


def _held(client: Downstream, subscription: Subscription) -> Held | None:
    """Return what a session holds of a subscription, unless both have gone separate ways."""
    session = client.session
    number = session.numbers.get(subscription.text)
    if client.ended or number is None or session.by_number.get(number) is not subscription:
        return None
    return session.hold(subscription)


async def ask_broker(
    upstream: Upstream, subscription: Subscription, number: int, handling: int
) -> int:
    """Subscribe at the broker under the gateway's number; return its reason code."""
    options = subscription.options
    wanted = Requested(
        broker_filter(subscription.text, subscription.ap),
        options & 3,
        bool(options & 4),
        bool(options & 8),
        handling,
    )
    properties = Properties(subscription_identifiers=(number,))
    answer = await upstream.subscribe(Subscribe(1, (wanted,), properties))
    return answer.reasons[0]


def broker_filter(text: str, ap: str | None) -> str:
    """Return the filter under which a subscription stands at the broker.

    Every group has a mark behind its name, so that nobody can name another's.
    """
    subscribed = parse_subscribed(text)
    if subscribed.group is None:
        return text
    mark = hashlib.sha256(f"purpose {ap}".encode() if ap is not None else b"").hexdigest()[:12]
    return f"$share/{subscribed.group}.{mark}/{subscribed.filter}"


def broker_filter_of(session: Session, text: str) -> str | None:
    """Return the filter that the broker has for a session's subscription, if there is one."""
    asleep = session.dormant.get(text)
    if asleep is not None:
        return broker_filter(text, asleep.purpose)
    number = session.numbers.get(text)
    held = session.by_number.get(number) if number is not None else None
    return broker_filter(text, held.ap) if held is not None else None
