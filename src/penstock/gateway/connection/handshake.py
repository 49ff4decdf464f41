"""How a connection opens: from a client's CONNECT to its CONNACK.

    CONNECT ──▶ who is it? ──▶ its client id? ──▶ its will? ──▶ broker: CONNECT
                                                                   │ CONNACK
    CONNACK ◀── deliveries may begin ◀── its subscriptions ◀───────┘

Rules that hold here:
- Nothing of a client reaches the broker before it is known who it is, that the client
  identifier is its own, and that it may publish its will.
- Of all gateways the broker knows best who has a session: who connected last. So the
  session's holder is looked up before the broker is asked, and the store lets a session be
  taken from that holder only, just as it was read after the broker's CONNACK. Where it was
  taken by somebody else meanwhile, the broker tells whether that one came later (then this
  connection is over) or is only slower (then it is taken up once more).
- A connection with the client identifier of another one takes over its session. The other
  one is ended first, so that no message can reach both; but never before it is known who
  the new one is, which the broker's CONNACK tells where the broker checks passwords.
- Every refusal is counted, audited, and told in the client's version of MQTT.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.clock import boot_clock
from penstock.errors import PenstockError
from penstock.gateway.authorization.message_purposes import as_properties, narrow, read_purposes
from penstock.gateway.broker import are_acceptable
from penstock.gateway.connection import subscription_lifecycle
from penstock.gateway.connection.authentication import RefusedError
from penstock.gateway.connection.disconnect import Cause, end
from penstock.gateway.connection.intake import OPENING
from penstock.gateway.connection.replies import within
from penstock.gateway.connection.upstream import Upstream
from penstock.gateway.session import Session
from penstock.gateway.translation import (
    EPOCH,
    PUBLISHER,
    Offer,
    client_connack,
    refusal,
    session_expiry,
    strip,
    upstream_connect,
)
from penstock.mqtt import V5, Connack, ConnectionState, PeerLimits, ReasonCode, Sender, Will
from penstock.mqtt.codes import FAILURE
from penstock.mqtt.connection import TopicAliases
from penstock.policy.purposes.commands import SendFor, parse_publish
from penstock.store.sessions import Begin, Forget, Return, TakenError

if TYPE_CHECKING:
    from penstock.gateway.connection.downstream import Downstream

_ASSIGNED_BYTES = 12
_UNKNOWN_NUMBERS = 1 << 27
_TRIES = 8


async def open_connection(client: Downstream) -> None:
    """Open a connection, or refuse it."""
    gateway = client.gateway
    try:
        await _open(client)
    except RefusedError as refused:
        gateway.counters.opened("refused")
        gateway.counters.denied("connection", refused.why)
        gateway.denials.connection(client.peer, refused.why)
        _refuse(client, refusal(refused.reason, refused.message, client.connect))
    except (OSError, TimeoutError, asyncio.CancelledError) as error:
        if client.ended:
            raise
        gateway.counters.opened("broker")
        gateway.counters.broker_lost()
        gateway.log.warning("the broker cannot be reached", error=error)
        _refuse(client, refusal(ReasonCode.SERVER_UNAVAILABLE, None, client.connect))


def _refuse(client: Downstream, answer: Connack) -> None:
    if client.ended:
        return
    client.connection.see(Sender.SERVER, answer)
    client.send(_fit(client, answer))
    end(client, Cause.DENIED)


def _fit(client: Downstream, told: Connack) -> bytes:
    """Encode a CONNACK, without its words where the client has no room for them."""
    silent = replace(told.properties, reason_string=None, user=())
    return within(client, told, replace(told, properties=silent))


async def _open(client: Downstream) -> None:
    gateway = client.gateway
    connect = client.connect
    client.problems = connect.properties.request_problem_information != 0
    certificate = None
    tls = client.transport.get_extra_info("ssl_object")
    if tls is not None:
        certificate = tls.getpeercert()
    principal = await gateway.authenticator.identify(connect, certificate)
    client_id, assigned = _client_id(client, principal)
    session = Session(client_id, principal, session_expiry(connect))
    seen = await _look_up(client, session)
    will = _authorise_will(client, session)
    client.session = session
    if not gateway.authenticator.relay:
        gateway.take_over(client)
    offer = gateway.offer(connect)
    answer = await _connect_broker(client, offer, will)
    if answer.reason >= FAILURE:
        gateway.counters.opened("refused")
        _refuse(client, _broker_refusal(client, answer))
        return
    if gateway.authenticator.relay:
        # Only now the password is known to be right: a wrong one must end nobody else.
        gateway.take_over(client)
    await _take_up_session(client, answer, seen)
    await gateway.wills.secure(session, resumed=answer.session_present)
    if client.broker().ended:
        raise ConnectionResetError
    _begin(client, answer, client_connack(answer, connect, assigned, offer), offer)


def _begin(client: Downstream, answer: Connack, told: Connack, offer: Offer) -> None:
    """Let the client in, in one step."""
    gateway = client.gateway
    upstream = client.broker()
    granted = answer.properties
    if granted.session_expiry is not None:
        client.session.expiry = granted.session_expiry
    upstream.keep_alive = granted.server_keep_alive or offer.broker_keep_alive
    client.quota = min(PeerLimits.said_in(granted).receive_maximum, offer.receive_maximum)
    client.aliases = TopicAliases(offer.topic_aliases)
    client.idle_limit = gateway.limits.idle_ticks(offer.keep_alive)
    client.open = client.connection.see(Sender.SERVER, told) is ConnectionState.CONNECTED
    gateway.counters.connections += 1
    client.renew()
    client.send(_fit(client, told))
    gateway.counters.opened("accepted")
    upstream.resume(OPENING)
    missing, client.session.missing = client.session.missing, []
    for subscription in missing:
        subscription_lifecycle.resume(client, subscription)


def _client_id(client: Downstream, principal: str) -> tuple[str, str | None]:
    """Return the client identifier, and whether it was assigned here."""
    connect = client.connect
    if not connect.client_id:
        made = f"{principal}:{secrets.token_hex(_ASSIGNED_BYTES)}"
        return made, made if connect.version == V5 else None
    if len(connect.client_id.encode()) > client.gateway.limits.topic_bytes:
        raise RefusedError(
            "the client identifier is too long", ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client_id"
        )
    if not client.gateway.authenticator.owns(principal, connect.client_id):
        raise RefusedError(
            "this client identifier is not yours; use your user name, or it and a colon first",
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            "client_id",
        )
    return connect.client_id, None


async def _look_up(client: Downstream, session: Session) -> str | None:
    """Return the holder of a session; refuse a client identifier that is another principal's."""
    gateway = client.gateway
    if not client.connect.client_id:
        return None
    known = await gateway.run_in_thread(gateway.sessions.owner, session.client_id)
    other = gateway.clients.get(session.client_id)
    owner = other.session.principal if other is not None else None
    # What begins with the user's own name is theirs, whoever had a session of that name.
    if owner is None and not gateway.authenticator.is_own(session.principal, session.client_id):
        owner = known.principal if known is not None else None
    if owner is not None and owner != session.principal:
        raise RefusedError(
            "this client identifier is in use by somebody else",
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            "client_id",
        )
    return known.holder if known is not None else None


def _authorise_will(client: Downstream, session: Session) -> Will | None:
    """Return the will that the broker is to publish, if it is, or refuse it."""
    will = client.connect.will
    if will is None:
        return None
    gateway = client.gateway
    topic = will.topic
    answer = will.properties.response_topic
    own: list[tuple[str, str]] = [(PUBLISHER, session.principal), (EPOCH, str(gateway.rules.epoch))]
    try:
        purposes = read_purposes(will.properties.user)
        if gateway.notation.is_command(topic):
            meant = parse_publish(topic, will.payload, gateway.notation)
            topic = ""
            if isinstance(meant, SendFor):
                topic, purposes = meant.topic, narrow(purposes, meant.purposes)
    except PenstockError as error:
        raise RefusedError(error.message, ReasonCode.TOPIC_NAME_INVALID, "will") from None
    limits = gateway.limits
    if len(topic.encode()) > limits.topic_bytes or topic.count("/") >= limits.topic_levels:
        raise RefusedError("the will's topic is too long", ReasonCode.TOPIC_NAME_INVALID, "will")
    if not topic or (answer is not None and gateway.notation.is_command(answer)):
        raise RefusedError("a will cannot be a command", ReasonCode.NOT_AUTHORIZED, "will")
    if not are_acceptable(_texts(topic, will)):
        # It may go out on the connection that all wills have in common.
        text = "the will has control characters in its topic or properties"
        raise RefusedError(text, ReasonCode.TOPIC_NAME_INVALID, "will")
    if boot_clock() > gateway.rules.fresh_until or not gateway.rules.enforceable:
        raise RefusedError("not allowed to write the will", ReasonCode.NOT_AUTHORIZED, "will")
    own += gateway.guard.stamp_of(session)
    if purposes is not None:
        own += as_properties(purposes)
    properties = replace(will.properties, user=(*strip(will.properties.user), *own))
    return gateway.wills.keep(session, replace(will, topic=topic, properties=properties))


def _texts(topic: str, will: Will) -> list[str]:
    """Return all texts of a will but its payload."""
    properties = will.properties
    named = [topic, properties.content_type or "", properties.response_topic or ""]
    return [*named, *(text for pair in properties.user for text in pair)]


async def _connect_broker(client: Downstream, offer: Offer, will: Will | None) -> Connack:
    gateway = client.gateway
    connect = client.connect
    username, password = gateway.broker_login(connect)
    request = upstream_connect(
        connect, client.session.client_id, offer, will=will, username=username, password=password
    )
    async with asyncio.timeout(gateway.broker_timeout):
        upstream = await gateway.reach_broker(lambda: Upstream(client))
        if client.ended:
            upstream.close(None)
            raise ConnectionResetError
        client.upstream = upstream
        upstream.intake.open(request)
        return await upstream.intake.connack


def _broker_refusal(client: Downstream, answer: Connack) -> Connack:
    """Pass on the broker's refusal where it is about the client, else say: unavailable."""
    if client.gateway.authenticator.relay and answer.reason in {
        *(ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED, ReasonCode.BANNED),
    }:
        return Connack(answer.reason)
    if answer.reason in {ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_BUSY}:
        return Connack(answer.reason)
    client.gateway.log.warning("the broker refused a client", code=f"0x{answer.reason:02x}")
    return Connack(int(ReasonCode.SERVER_UNAVAILABLE))


async def _take_up_session(client: Downstream, answer: Connack, seen: str | None) -> None:
    """Restore what the session's subscriptions stand for, or begin it in the store."""
    if answer.properties.subscription_identifiers_available == 0:
        raise OSError("the broker knows no subscription identifiers")
    client.gateway.rules.engine.end_session(client.session.client_id)
    for _ in range(_TRIES):
        try:
            await _inherit(client, answer, seen)
        except TakenError:
            # First looked up, then asked: whoever is found then came before this connection.
            seen = await _look_up(client, client.session)
            if not await _is_current(client):
                raise RefusedError(
                    "another connection has taken the session over", ReasonCode.SERVER_BUSY, "busy"
                ) from None
        else:
            return
    raise RefusedError("too many connections want this session", ReasonCode.SERVER_BUSY, "busy")


async def _is_current(client: Downstream) -> bool:
    async with asyncio.timeout(client.gateway.broker_timeout):
        return await client.broker().intake.is_current()


async def _inherit(client: Downstream, answer: Connack, seen: str | None) -> None:
    """Take a session up from the holder that was seen, as one step of the store."""
    gateway = client.gateway
    session = client.session
    stored = None
    if answer.session_present and seen is not None:
        stored = await gateway.run_in_thread(gateway.sessions.load, session.client_id)
        if stored is None or stored.holder != seen:
            raise TakenError
    if stored is not None and stored.principal == session.principal:
        session.stored = True
        await gateway.session_writer.save(Return(session.client_id, session.holder, stored))
        session.last_number = stored.last_number
        session.missing = subscription_lifecycle.restore(client, stored.subscriptions)
        return
    if answer.session_present:
        # The broker has subscriptions that nobody knows here: their numbers must not be ours.
        session.last_number = secrets.randbelow(_UNKNOWN_NUMBERS)
    if session.resumable:
        session.stored = True
        await gateway.session_writer.save(
            Begin(session.client_id, session.principal, session.holder, seen)
        )
    elif seen is not None:
        # The broker has ended an earlier session that was to be kept.
        await gateway.session_writer.save(Forget(session.client_id, seen))
