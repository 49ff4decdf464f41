"""How a connection opens: from a client's CONNECT to its CONNACK.

    CONNECT ──▶ who is it? ──▶ its client id? ──▶ its will? ──▶ broker: CONNECT
                                                                   │ CONNACK
    CONNACK ◀── deliveries may begin ◀── its subscriptions ◀───────┘

Rules that hold here:
- Nothing of a client reaches the broker before it is known who it is, that the client
  identifier is its own, and that it may publish its will.
- A connection with the client identifier of another one takes over its session (MQTT5 3.1.4).
  The other one is ended first, so that no message can reach both; but never before it is known
  who the new one is, which the broker's CONNACK tells where the broker checks passwords.
- A client that begins without a session and a will at the broker needs no connection there
  until it does more than publish over its lane.
- Every refusal is counted, audited, and told in the client's version of MQTT.
- Where the broker checks passwords, neither it nor the store is asked before it is the client's
  turn (`LoginQueue`).
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from penstock.errors import UnavailableError
from penstock.gateway.broker import (
    BrokerAddress,
    Offer,
    client_connack,
    read_choice,
    refusal,
    session_expiry,
    upstream_connect,
)
from penstock.gateway.connection.admission import Admission
from penstock.gateway.connection.authentication import Authenticator, RefusedError, too_busy
from penstock.gateway.connection.broker_connection import OPENING
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.client_registry import ClientRegistry, Revocation
from penstock.gateway.connection.context import Cause, ConnectionContext
from penstock.gateway.connection.login_queue import BusyError, Turn
from penstock.gateway.connection.presented_capabilities import PresentedCapabilities
from penstock.gateway.connection.session_resumption import SessionResumption
from penstock.gateway.connection.subscription_lifecycle import (
    SubscriptionLifecycle,
    SubscriptionState,
)
from penstock.gateway.connection.upstream import Upstream
from penstock.gateway.session import Session
from penstock.mqtt import V5, Connack, Connect, PeerLimits, ReasonCode, Sender, Will
from penstock.mqtt.codes import FAILURE
from penstock.telemetry import get_logger

_ASSIGNED_BYTES = 12
_ABOUT_THE_CLIENT = frozenset(
    {ReasonCode.BAD_USER_NAME_OR_PASSWORD, ReasonCode.NOT_AUTHORIZED, ReasonCode.BANNED}
)
_log = get_logger("gateway")


class Handshake:
    """Opens the connections of clients."""

    def __init__(
        self,
        context: ConnectionContext,
        registry: ClientRegistry,
        admission: Admission,
        resumption: SessionResumption,
        lifecycle: SubscriptionLifecycle,
        state: SubscriptionState,
        revocation: Revocation,
        *,
        authenticator: Authenticator,
        broker: BrokerAddress,
        presented: PresentedCapabilities | None = None,
    ) -> None:
        self._presented = presented
        self._context = context
        self._registry = registry
        self._admission = admission
        self._resumption = resumption
        self._lifecycle = lifecycle
        self._state = state
        self._revocation = revocation
        self._authenticator = authenticator
        self._broker = broker

    async def open(self, client: ClientConnection) -> None:
        """Open a connection, or refuse it."""
        context = self._context
        try:
            try:
                await self._open(client)
            except BusyError:
                raise too_busy() from None
        except RefusedError as refused:
            context.counters.opened("refused")
            context.counters.turned_away(refused.why)
            context.counters.denied("connection", refused.why)
            context.denials.connection(client.peer, refused.why)
            _refuse(client, refusal(refused.reason, refused.message, client.connect))
        except UnavailableError as error:
            # Whose session it is cannot be known: the store is away.
            context.counters.opened("refused")
            if context.counters.turned_away("store"):
                _log.warning("a connection cannot be opened now", error=error)
            _refuse(client, refusal(ReasonCode.SERVER_UNAVAILABLE, None, client.connect))
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            if client.ended:
                raise
            context.counters.opened("broker")
            context.counters.broker_lost()
            if context.counters.turned_away("broker"):
                _log.warning("the broker cannot be reached", error=error)
            _refuse(client, refusal(ReasonCode.SERVER_UNAVAILABLE, None, client.connect))

    async def _open(self, client: ClientConnection) -> None:
        connect = client.connect
        relay = self._authenticator.relay
        tls = client.transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert() if tls is not None else None
        identity = await self._authenticator.identify(connect, certificate, client.peer)
        principal = identity.name
        async with self._turn(client, principal, certificate) as turn:
            client_id, assigned = self._client_id(connect, principal)
            offer = self._offer(connect)
            session = Session(client_id, principal, offer.session_expiry, address=client.peer)
            session.credential = identity.credential
            session.valid_until = identity.valid_until
            session.chosen_roles = read_choice(connect)
            self._revocation.check(session)
            if self._presented is not None:
                await self._presented.check(connect, session, self._context.rules.clock())
            seen = await self._resumption.look_up(connect, session)
            will = self._admission.admit_will(connect, session)
            client.identify(session)
            if not relay:
                self._take_over(client)
                if connect.client_id:
                    await self._context.lanes.take_over(client_id, session.holder)
                if will is None and seen is None and self._needs_no_session(client):
                    await self._open_without_broker(client, assigned, offer)
                    return
            upstream, answer = await self._connect_broker(client, offer, will)
            if turn is not None:
                about_it = answer.reason < FAILURE or answer.reason in _ABOUT_THE_CLIENT
                turn.right = answer.reason < FAILURE if about_it else None
        if answer.reason >= FAILURE:
            self._context.counters.opened("refused")
            if relay and answer.reason in _ABOUT_THE_CLIENT:
                self._context.counters.turned_away("password")
            _refuse(client, self._broker_refusal(answer))
            return
        if relay:
            # Only now the password is known to be right: a wrong one must end nobody else.
            self._take_over(client)
        await self._resumption.take_up(connect, session, upstream.intake, answer, seen)
        if answer.session_present:
            upstream.decisions.connection.since = 0
        # In the same step: what commands did since the session was read.
        self._state.catch_up(client)
        await self._context.wills.secure(session, resumed=answer.session_present)
        if upstream.ended:
            raise ConnectionResetError
        self._revocation.check(session)
        told = client_connack(answer, connect, client_id, assigned, offer)
        _begin(client, upstream, answer, told, offer)
        self._lifecycle.align(client)
        self._lifecycle.end_dormant(client)

    def _take_over(self, client: ClientConnection) -> None:
        """Let a client have its identifier, with the roles that it chose and no others."""
        self._registry.take_over(client)
        session = client.session
        if session.chosen_roles is None:
            return
        if not self._context.rules.has_chosen(session):
            # Whether there is such a role is nobody's business who cannot have it.
            raise RefusedError(
                "a role that you named is not active for you", ReasonCode.NOT_AUTHORIZED, "role"
            )
        self._admission.admit_will(client.connect, session)

    def _needs_no_session(self, client: ClientConnection) -> bool:
        """Say whether the broker need not know a client before it does more than publish."""
        session, lanes, connect = client.session, self._context.lanes, client.connect
        lane = lanes.of(session.client_id)
        fresh = connect.clean_start and not session.resumable and not session.counted
        # What the broker has to say to this client alone, only its own CONNECT asks for.
        asks = bool(connect.properties.request_response_information)
        return fresh and not asks and lane is not None and lane.open and lanes.ready

    async def _open_without_broker(
        self, client: ClientConnection, assigned: str | None, offer: Offer
    ) -> None:
        """Let a client in that has no connection to the broker until it needs one."""
        session = client.session
        self._resumption.begin(session)
        self._state.catch_up(client)
        await self._context.wills.secure(session, resumed=False)
        lane = self._context.lanes.of(session.client_id)
        if lane is None or not lane.open or not self._context.lanes.ready:
            raise ConnectionResetError
        self._revocation.check(session)
        answer = Connack(properties=lane.granted)
        told = client_connack(answer, client.connect, session.client_id, assigned, offer)
        receive_maximum = PeerLimits.said_in(lane.granted).receive_maximum
        client.let_in(told, _fit(client, told), offer, receive_maximum)

    async def open_broker(self, client: ClientConnection) -> None:
        """Give a client its own connection to the broker, where it has none yet."""
        offer = self._offer(client.connect)
        try:
            upstream, answer = await self._connect_broker(client, offer, None)
        except (OSError, TimeoutError) as error:
            if not client.ended:
                _log.warning("the broker cannot be reached", error=error)
                client.lose_broker()
            return
        numbers = answer.properties.subscription_identifiers_available != 0
        if answer.reason >= FAILURE or not numbers or upstream.ended:
            client.lose_broker()
            return
        _grant(client, upstream, answer, offer)
        upstream.resume(OPENING)

    def _turn(
        self, client: ClientConnection, principal: str, certificate: object
    ) -> AbstractAsyncContextManager[Turn | None]:
        """Wait for a turn where the broker checks the password: until then nothing is done."""
        if certificate or not self._authenticator.relay or client.connect.username is None:
            return nullcontext()
        return self._authenticator.logins.turn(client.peer, principal)

    def _client_id(self, connect: Connect, principal: str) -> tuple[str, str | None]:
        """Return the client identifier, and whether it was assigned here."""
        if not connect.client_id:
            # MQTT5 3.1.3.1: the server assigns one, and says which; 3.1.1 is not told.
            made = f"{principal}:{secrets.token_hex(_ASSIGNED_BYTES)}"
            return made, made if connect.version == V5 else None
        size, most = len(connect.client_id.encode()), self._context.limits.client_id_bytes
        if size > most:
            raise RefusedError(
                f"the client identifier has {size} bytes; at most {most} are taken",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                "client_id",
            )
        named = self._context.rules.named_clients
        if not self._authenticator.owns(principal, connect.client_id, named):
            raise RefusedError(
                "this client identifier is not yours; use your user name, or it and a colon first",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                "client_id",
            )
        return connect.client_id, None

    def _offer(self, connect: Connect) -> Offer:
        """Say what a client is granted."""
        limits = self._context.limits
        return Offer(
            packet=limits.packet,
            receive_maximum=limits.receive_maximum,
            topic_aliases=limits.topic_aliases,
            keep_alive=limits.granted_keep_alive(connect.keep_alive),
            broker_keep_alive=self._broker.keep_alive,
            client_id_bytes=limits.client_id_bytes,
            topic_bytes=limits.topic_bytes,
            topic_levels=limits.topic_levels,
            session_expiry=min(session_expiry(connect), limits.session_expiry),
        )

    async def _connect_broker(
        self, client: ClientConnection, offer: Offer, will: Will | None
    ) -> tuple[Upstream, Connack]:
        connect, broker = client.connect, self._broker
        if self._authenticator.relay:
            username, password = connect.username, connect.password
        else:
            username, password = broker.username, broker.password()
        request = upstream_connect(
            connect,
            f"{broker.client_prefix}{client.session.client_id}",
            offer,
            will=will,
            username=username,
            password=password,
        )
        async with asyncio.timeout(broker.timeout):
            upstream = await broker.connect(lambda: Upstream(client))
            if client.ended:
                upstream.close(None)
                raise ConnectionResetError
            client.attach(upstream)
            upstream.intake.open(request)
            return upstream, await upstream.intake.connack

    def _broker_refusal(self, answer: Connack) -> Connack:
        """Pass on the broker's refusal where it is about the client, else say: unavailable."""
        if self._authenticator.relay and answer.reason in _ABOUT_THE_CLIENT:
            return Connack(answer.reason)
        if answer.reason in {ReasonCode.QUOTA_EXCEEDED, ReasonCode.SERVER_BUSY}:
            return Connack(answer.reason)
        if self._context.counters.turned_away("broker"):
            _log.warning("the broker refused a client", code=f"0x{answer.reason:02x}")
        return Connack(int(ReasonCode.SERVER_UNAVAILABLE))


def _begin(
    client: ClientConnection, upstream: Upstream, answer: Connack, told: Connack, offer: Offer
) -> None:
    """Let the client in, in one step."""
    granted = answer.properties
    if granted.session_expiry is not None:
        # MQTT5 3.2.2.3.2
        client.session.expiry = min(granted.session_expiry, offer.session_expiry)
    client.let_in(told, _fit(client, told), offer, PeerLimits.said_in(granted).receive_maximum)
    _grant(client, upstream, answer, offer)
    upstream.resume(OPENING)


def _grant(client: ClientConnection, upstream: Upstream, answer: Connack, offer: Offer) -> None:
    """Take what the broker grants to a client's own connection."""
    granted = answer.properties
    upstream.keep_alive = granted.server_keep_alive or offer.broker_keep_alive
    client.quota = min(PeerLimits.said_in(granted).receive_maximum, offer.receive_maximum)


def _refuse(client: ClientConnection, answer: Connack) -> None:
    if client.ended:
        return
    client.connection.see(Sender.SERVER, answer)
    client.send(_fit(client, answer))
    client.end(Cause.DENIED)


def _fit(client: ClientConnection, told: Connack) -> bytes:
    """Encode a CONNACK, without its words where the client has no room for them."""
    silent = replace(told.properties, reason_string=None, user=())
    return client.fit(told, replace(told, properties=silent))
