"""How a client's session is taken up: from the store, where the broker has it, too.

    owner in the store ──▶ broker: CONNACK ──▶ still that owner? ── yes ──▶ subscriptions held
                                                     └── no ──▶ broker: is it this connection's?

Rules that hold here:
- Of all gateways the broker knows best who has a session: who connected last. So the
  session's holder is looked up before the broker is asked, and the store lets a session be
  taken from that holder only, just as it was read after the broker's CONNACK. Where it was
  taken by somebody else meanwhile, the broker tells whether that one came later (then this
  connection is over) or is only slower (then it is taken up once more).
- The broker's word on whether there is a session counts (MQTT5 3.2.2.1.1).
- Who has as many sessions as allowed is refused before anything is ended or begun for it; of
  several that come at once, the store counts.
"""

from __future__ import annotations

import asyncio
import secrets

from penstock.gateway.authorization.rules import Rules
from penstock.gateway.connection.authentication import Authenticator, RefusedError
from penstock.gateway.connection.broker_connection import Intake
from penstock.gateway.connection.client_registry import ClientRegistry
from penstock.gateway.connection.subscription_lifecycle import SubscriptionLifecycle
from penstock.gateway.event_loop import Background, SessionWriter
from penstock.gateway.session import Session
from penstock.mqtt import Connack, Connect, ReasonCode
from penstock.store.session_tables import SessionQuotaError
from penstock.store.sessions import Begin, Forget, Return, SessionChange, Sessions, TakenError

_UNKNOWN_NUMBERS = 1 << 27
_TRIES = 8


class SessionResumption:
    """Takes sessions up for the clients that come back to them."""

    def __init__(
        self,
        rules: Rules,
        registry: ClientRegistry,
        lifecycle: SubscriptionLifecycle,
        *,
        authenticator: Authenticator,
        sessions: Sessions,
        session_writer: SessionWriter[SessionChange],
        background: Background,
        broker_timeout: float,
    ) -> None:
        self._rules = rules
        self._registry = registry
        self._lifecycle = lifecycle
        self._authenticator = authenticator
        self._sessions = sessions
        self._session_writer = session_writer
        self._background = background
        self._broker_timeout = broker_timeout

    async def look_up(self, connect: Connect, session: Session) -> str | None:
        """Return the holder of a session; refuse a client identifier of another principal."""
        if not connect.client_id:
            known = None
        else:
            known = await self._background.run_in_thread(self._sessions.owner, session.client_id)
        other = self._registry.get(session.client_id)
        owner = known.principal if known is not None else None
        owner = other.session.principal if other is not None else owner
        if owner not in {None, session.principal} and not self._yields(owner or "", session):
            raise RefusedError(
                "this client identifier is in use by somebody else",
                ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
                "client_id",
            )
        session.counted = known is not None
        if session.resumable and (known is None or known.principal != session.principal):
            await self._check_quota(session)
        return known.holder if known is not None else None

    def _yields(self, owner: str, session: Session) -> bool:
        """Say whether an identifier is a user's now, whoever has or had a session of that name."""
        users, wanted = self._authenticator, session.client_id
        return users.is_own(session.principal, wanted) or not users.owns(
            owner, wanted, self._rules.named_clients
        )

    async def _check_quota(self, session: Session) -> None:
        check = self._sessions.check_quota
        try:
            await self._background.run_in_thread(check, session.principal, session.quota_address)
        except SessionQuotaError as error:
            raise _refuse(error) from None

    async def take_up(
        self, connect: Connect, session: Session, intake: Intake, answer: Connack, seen: str | None
    ) -> None:
        """Restore what the session's subscriptions stand for, or begin it in the store."""
        if answer.properties.subscription_identifiers_available == 0:
            raise OSError("the broker knows no subscription identifiers")
        self.begin(session)
        for _ in range(_TRIES):
            try:
                await self._inherit(session, answer, seen)
            except TakenError:
                # First looked up, then asked: whoever is found then came before this connection.
                seen = await self.look_up(connect, session)
                async with asyncio.timeout(self._broker_timeout):
                    current = await intake.is_current()
                if not current:
                    raise RefusedError(
                        "another connection has taken the session over",
                        ReasonCode.SERVER_BUSY,
                        "busy",
                    ) from None
            else:
                return
        raise RefusedError("too many connections want this session", ReasonCode.SERVER_BUSY, "busy")

    def begin(self, session: Session) -> None:
        """Begin a session without subscriptions."""
        self._rules.engine.end_session(session.client_id)
        session.era = self._rules.epoch

    async def _inherit(self, session: Session, answer: Connack, seen: str | None) -> None:
        """Take a session up from the holder that was seen, as one step of the store."""
        stored = None
        if answer.session_present and seen is not None:
            stored = await self._background.run_in_thread(self._sessions.load, session.client_id)
            if stored is None or stored.holder != seen:
                raise TakenError
        if stored is not None and stored.principal == session.principal:
            session.stored = True
            back = Return(session.client_id, session.holder, stored, session.expiry)
            await self._session_writer.save(back)
            session.last_number = stored.last_number
            session.era = stored.era
            session.persisted = {it.filter: it for it in stored.persisted}
            self._lifecycle.restore(session, stored.subscriptions)
            return
        if answer.session_present:
            # The broker has subscriptions that nobody knows here: their numbers must not be ours.
            session.last_number = secrets.randbelow(_UNKNOWN_NUMBERS)
        if session.resumable:
            session.stored = True
            begun = Begin(
                session.client_id,
                session.principal,
                session.holder,
                seen,
                session.expiry,
                session.quota_address,
            )
            try:
                await self._session_writer.save(begun)
            except SessionQuotaError as error:
                session.counted = False
                raise _refuse(error) from None
            session.counted = True
        elif seen is not None:
            # The broker has ended an earlier session that was to be kept.
            await self._session_writer.save(Forget(session.client_id, seen))


def _refuse(error: SessionQuotaError) -> RefusedError:
    return RefusedError(str(error), ReasonCode.QUOTA_EXCEEDED, "sessions")
