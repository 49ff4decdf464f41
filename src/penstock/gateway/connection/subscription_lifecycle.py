"""Subscriptions that clients hold: stored, paused and resumed, asleep and awake, at the broker.

    held ──▶ the mode forbids it now ──▶ paused ──▶ allowed again ──▶ held
     │                                                                 ▲
     └─▶ its purpose is none, or not theirs ──▶ asleep ──▶ it is again ┘

    store: epoch 7 CLEAR ──▶ feed ──▶ follow ──▶ each session ──▶ store and broker aligned

Rules that hold here:
- What the rules forbid delivers nothing from the step on in which they changed; the broker
  is told afterwards, and the store before the broker.
- What is asleep is known by its filter and number only. It wakes when the rules of then
  would accept it as it was made.
- A shared subscription goes to the broker under a group name with its purpose, its user and its
  content filter in it: a group whose members have one of each, wherever they are connected.
  The broker gives each message to any one member (MQTT5 4.8.2); one who may not have it would
  take it from those who may.
- Each gateway carries out each command once for each of its sessions, in the order of their
  epochs; a session that is taken up has those behind it that the store had (`Session.era`).
- A command takes effect in one step: nothing flows through what it has ended from then on. The
  store is told next, the broker last.
- PERSIST notes what all subscriptions stand for, CLEAR ends those for purposes, and RELOAD
  goes back to the note: what has another purpose gets that of then, what is for a purpose and
  was not there ends, and what a command has ended comes back. What the client has ended itself
  does not: MQTT5 3.10.4 forbids to send it more.
- A subscription that comes back is decided by the rules of now: one that they refuse sleeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from penstock.gateway.authorization.denials import Denials
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.client_registry import ClientRegistry
from penstock.gateway.event_loop import Background, SessionWriter
from penstock.gateway.session import NO_LOCAL, Session
from penstock.model.topics import overlaps, parse_subscribed
from penstock.mqtt import Properties, RequestedSubscription, Subscribe, Unsubscribe
from penstock.mqtt.codes import FAILURE
from penstock.policy.access.principals import ANONYMOUS
from penstock.policy.authorizer import UNMATCHED
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.purpose_state import Did, StateCommand
from penstock.store.session_tables import PAUSED
from penstock.store.sessions import Keep, SessionChange, StoredSubscription
from penstock.telemetry import get_logger

_NO_RETAINED = 2
_REPLAY = 0
_log = get_logger("gateway")


class SubscriptionLifecycle:
    """Follows the subscriptions of all clients, from the store to the broker."""

    def __init__(
        self,
        rules: Rules,
        denials: Denials,
        session_writer: SessionWriter[SessionChange],
        background: Background,
        *,
        replay_retained: bool,
    ) -> None:
        self._rules = rules
        self._denials = denials
        self._session_writer = session_writer
        self._background = background
        # MQTT5 3.8.3.1: retain handling
        self._handling = _REPLAY if replay_retained else _NO_RETAINED

    def drop(self, client: ClientConnection, text: str) -> None:
        """Forget a subscription."""
        session = client.session
        self._rules.engine.unsubscribe(session.client_id, text)
        session.drop(text)
        client.forget_decisions()

    async def keep(
        self,
        session: Session,
        put: Iterable[StoredSubscription],
        dropped: Iterable[str],
        cleared: Iterable[str] = (),
    ) -> None:
        """Make the subscriptions of a session that outlives its connection durable."""
        if not session.stored:
            return
        change = Keep(
            session.client_id,
            session.holder,
            tuple(put),
            tuple(dropped),
            session.last_number,
            tuple(cleared),
            session.era,
        )
        if change.put or change.drop or change.cleared:
            await self._session_writer.save(change)

    def restore(self, session: Session, stored: Iterable[StoredSubscription]) -> None:
        """Take up the subscriptions of a session that the broker has kept.

        One that the rules of now would refuse sleeps until they change. Those that the broker
        does not have, because they were paused when the session was left, are `missing`; those
        that a command has ended meanwhile, `cleared`.
        """
        for it in stored:
            if it.number < 0:
                session.cleared.append(it)
                continue
            subscription = self._rules.restore(session, it, it.options & ~PAUSED)
            session.restore(it, subscription)
            if subscription is not None and it.options & PAUSED:
                session.missing.append(subscription)

    # --- ended and brought back by commands ---

    def end(self, client: ClientConnection, held: StoredSubscription) -> None:
        """End a subscription because a command says so; the broker is told in `align`."""
        session = client.session
        self._rules.engine.unsubscribe(session.client_id, held.filter)
        session.end(held.filter)
        session.cleared.append(held)
        client.forget_decisions()

    def align(self, client: ClientConnection) -> None:
        """Let store and broker follow what commands have ended and brought back."""
        if client.open and (client.session.cleared or client.session.missing):
            self._background.start(self._align(client))

    async def _align(self, client: ClientConnection) -> None:
        session = client.session
        cleared, session.cleared = session.cleared, []
        missing, session.missing = session.missing, []
        touched = {it.filter for it in cleared} | {it.text for it in missing}
        absent = {it.text for it in missing}
        absent |= {it.text for it in session.by_number.values() if not it.active}
        put = [
            replace(it, options=it.options | PAUSED) if it.filter in absent else it
            for it in session.subscriptions()
            if it.filter in touched
        ]
        # Stored first: who takes the session up must know what the broker is still to be told.
        await self.keep(session, put, [], touched - session.numbers.keys())
        for it in cleared:
            there = stored_filter(it, session.principal)
            # It may have been made again meanwhile, by the client or by another command.
            if not client.ended and broker_filter_of(session, it.filter) != there:
                await client.broker().requests.unsubscribe(Unsubscribe(1, (there,)))
        for subscription in missing:
            await self._resume(client, subscription)

    # --- asleep and awake ---

    def rest(self, client: ClientConnection) -> None:
        """Put to sleep what is for a purpose that is no longer declared, or no longer theirs."""
        session = client.session
        authorizer = self._rules.authorizer
        for subscription in list(session.by_number.values()):
            refusal = authorizer.refuse_subscription(
                session.user, session.client_id, subscription.ap, subscription.filter
            )
            if refusal is None and self._rules.renew_content(session, subscription):
                continue
            rule = refusal.rule if refusal is not None else UNMATCHED
            asleep = session.put_to_sleep(subscription)
            self._rules.engine.unsubscribe(session.client_id, asleep.filter)
            self._denials.subscription(session, rule)
            client.forget_decisions()
            self._background.start(self._rest(client, asleep))

    def end_dormant(self, client: ClientConnection) -> None:
        """End at the broker what sleeps in a session that was taken up again.

        A member of a shared subscription that sleeps would take messages from the others.
        """
        for asleep in client.session.dormant.values():
            if not asleep.options & PAUSED:
                self._background.start(self._rest(client, asleep))

    async def _rest(self, client: ClientConnection, asleep: StoredSubscription) -> None:
        """End at the broker what is asleep, unless it has woken up meanwhile."""
        paused = replace(asleep, options=asleep.options | PAUSED)
        await self.keep(client.session, [paused], [])
        dormant = client.session.dormant
        if not client.ended and dormant.get(asleep.filter) is asleep:
            dormant[asleep.filter] = paused
            filters = (stored_filter(asleep, client.session.principal),)
            await client.broker().requests.unsubscribe(Unsubscribe(1, filters))

    def wake(self, client: ClientConnection, concerned: Iterable[str] | None) -> None:
        """Try again the subscriptions that could not be taken up when the session was.

        All of them, or those that have topics in common with some of these filters.
        """
        dormant = client.session.dormant
        waiting = [it for it in dormant.values() if concerned is None or _meets(it, concerned)]
        for it in waiting:
            del dormant[it.filter]
        self.restore(client.session, waiting)
        self.align(client)

    # --- paused and resumed ---

    def pause(self, client: ClientConnection, subscription: Subscription) -> None:
        """End at the broker a subscription that is forbidden for now."""
        self._background.start(self._pause(client, subscription))

    def resume(self, client: ClientConnection, subscription: Subscription) -> None:
        """Make at the broker, once more, a subscription that is allowed again."""
        self._background.start(self._resume(client, subscription))

    async def _pause(self, client: ClientConnection, subscription: Subscription) -> None:
        held = _held(client, subscription)
        if held is None:
            return
        # Stored first: who takes the session up must know that the broker has it no longer.
        await self.keep(client.session, [replace(held, options=held.options | PAUSED)], [])
        if not subscription.active and _held(client, subscription) is not None:
            principal = client.session.principal
            filters = (made_filter(subscription, principal),)
            await client.broker().requests.unsubscribe(Unsubscribe(1, filters))

    async def _resume(self, client: ClientConnection, subscription: Subscription) -> None:
        held = _held(client, subscription)
        if held is None or not subscription.active:
            return
        reason = await ask_broker(client, subscription, held.number, self._handling)
        if reason >= FAILURE:
            # It stays marked as paused: who takes the session up tries again.
            _log.warning("the broker refused to resume", code=f"0x{reason:02x}")
            return
        # It may have been paused again meanwhile, and marked so.
        if _flows(client, subscription):
            await self.keep(client.session, [held], [])


def _meets(stored: StoredSubscription, filters: Iterable[str]) -> bool:
    mine = parse_subscribed(stored.filter).filter
    return any(overlaps(mine, it) for it in filters)


def _flows(client: ClientConnection, subscription: Subscription) -> bool:
    return subscription.active and _held(client, subscription) is not None


def _held(client: ClientConnection, subscription: Subscription) -> StoredSubscription | None:
    """Return what a session holds of a subscription, unless both have gone separate ways."""
    session = client.session
    if client.ended or session.find(subscription.text) is not subscription:
        return None
    return session.hold(subscription)


async def ask_broker(
    client: ClientConnection, subscription: Subscription, number: int, handling: int
) -> int:
    """Subscribe at the broker under the gateway's number; return its reason code."""
    options = subscription.options
    principal = client.session.principal
    if options & NO_LOCAL:
        # The broker tells the client's messages from others by the connection they come on.
        client.leave_lane()
        await client.settle_lane()
    wanted = RequestedSubscription(
        made_filter(subscription, principal),
        options & 3,
        bool(options & NO_LOCAL),
        bool(options & 8),
        handling,
    )
    properties = Properties(subscription_identifiers=(number,))
    answer = await client.broker().requests.subscribe(Subscribe(1, (wanted,), properties))
    return answer.reasons[0]


def broker_filter(
    text: str, ap: str | None, principal: str = ANONYMOUS, content: str | None = None
) -> str:
    """Return the filter under which a subscription stands at the broker.

    Every group has a mark behind its name, so that nobody can name another's.
    """
    subscribed = parse_subscribed(text)
    if subscribed.group is None:
        return text
    meant = f"purpose {ap}" if ap is not None else ""
    if principal != ANONYMOUS:
        meant += f"\0user {principal}"
    if content is not None:
        meant += f"\0content {content}"
    mark = hashlib.sha256(meant.encode()).hexdigest()[:12]
    return f"$share/{subscribed.group}.{mark}/{subscribed.filter}"


def made_filter(subscription: Subscription, principal: str) -> str:
    """Return the filter under which a subscription stands at the broker."""
    content = subscription.content.text if subscription.content is not None else None
    return broker_filter(subscription.text, subscription.ap, principal, content)


def stored_filter(held: StoredSubscription, principal: str) -> str:
    """Return the filter under which a subscription that the store knows stands at the broker."""
    return broker_filter(held.filter, held.purpose, principal, held.content)


def broker_filter_of(session: Session, text: str) -> str | None:
    """Return the filter that the broker has for a session's subscription, if there is one."""
    asleep = session.dormant.get(text)
    if asleep is not None:
        return stored_filter(asleep, session.principal)
    held = session.find(text)
    return made_filter(held, session.principal) if held is not None else None


class SubscriptionState:
    """Follows the commands on the purpose state for the clients of one gateway."""

    def __init__(
        self, rules: Rules, clients: ClientRegistry, lifecycle: SubscriptionLifecycle
    ) -> None:
        self._rules = rules
        self._clients = clients
        self._lifecycle = lifecycle

    def follow(self, commands: Iterable[StateCommand]) -> None:
        """Carry out commands that the store has told of, for all clients."""
        for command in commands:
            later = [it for it in self._clients.identified() if it.session.era < command.epoch]
            self._carry_out(command.did, later)
            for client in later:
                client.session.era = command.epoch

    def catch_up(self, client: ClientConnection) -> None:
        """Carry out what commands did after the session of a client was read."""
        session = client.session
        for command in self._rules.state.since(session.era):
            self._carry_out(command.did, [client])
            session.era = command.epoch

    def clear_here(self) -> None:
        """End the subscriptions for purposes at this gateway alone."""
        self._carry_out("clear", list(self._clients.identified()))

    def set_back(self, epoch: int) -> None:
        """Take note that the store was set back to an epoch: what follows is new to all."""
        for client in self._clients.identified():
            client.session.era = min(client.session.era, epoch)

    def _carry_out(self, did: Did, clients: list[ClientConnection]) -> None:
        if did == "persist":
            for client in clients:
                session = client.session
                session.persisted = {it.filter: _awake(it) for it in session.subscriptions()}
            return
        if did == "clear":
            for client in clients:
                if not self._rules.is_excepted(client.session):
                    for held in client.session.subscriptions():
                        if held.purpose is not None:
                            self._lifecycle.end(client, held)
        else:
            self._reload(clients)
        for client in clients:
            self._lifecycle.align(client)
            if client.open:
                self._lifecycle.end_dormant(client)

    def _reload(self, clients: list[ClientConnection]) -> None:
        # First all that ends, then all that begins: members of a group have one purpose.
        begins = [(client, stored) for client in clients for stored in self._end_changed(client)]
        for client, stored in begins:
            self._lifecycle.restore(client.session, [stored])

    def _end_changed(self, client: ClientConnection) -> list[StoredSubscription]:
        """End what stands for something else than was persisted; return what is to begin."""
        session = client.session
        begins: list[StoredSubscription] = []
        held = {it.filter: it for it in session.subscriptions()}
        for now in held.values():
            then = session.persisted.get(now.filter)
            if then is None and now.purpose is None:
                continue
            if then is not None and then.purpose == now.purpose:
                continue
            subscription = session.find(now.filter)
            at_broker = subscription is not None and subscription.active
            self._lifecycle.end(client, now)
            if then is not None:
                # Its number stays: what is queued under it is judged by what it is for now.
                again = replace(
                    now,
                    purpose=then.purpose,
                    content=then.content,
                    options=now.options & ~PAUSED,
                )
                same = _there(client, again) == _there(client, now)
                begins.append(again if at_broker and same else _paused(again))
        begins += [_paused(it) for text, it in session.persisted.items() if text not in held]
        return begins


def _there(client: ClientConnection, held: StoredSubscription) -> str:
    return stored_filter(held, client.session.principal)


def _paused(held: StoredSubscription) -> StoredSubscription:
    return replace(held, options=held.options | PAUSED)


def _awake(held: StoredSubscription) -> StoredSubscription:
    return replace(held, options=held.options & ~PAUSED)
