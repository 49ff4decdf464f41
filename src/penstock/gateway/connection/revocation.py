"""Who may no longer be here: connections of users that are removed or blocked end at once.

    file of passwords changed ──┐
    `user` blocked or removed ──┼──▶ is this client still who it logged in as? ── no ──▶ closed
    CONNECT on its way ─────────┘

Rules that hold here:
- A user is gone when the file of passwords no longer has them; a user whose password or client
  identifiers have changed logs in again. Certificates and the broker's own users have no such
  file: a `user` definition that is `blocked` keeps anybody out, however they log in. Who is no
  longer defined has to log in again, and is kept out where only defined users may come.
- The file is looked at several times a second, by each gateway and worker. One that cannot be
  used for as long as a lease says nothing any more: who came by it has to go.
- Whoever is closed here publishes nothing more, the will included. A user that is gone leaves no
  session behind, so that a later user of the same name inherits nothing.
- Who logs in while that changes is looked at again in the step that lets them in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from penstock.clock import boot_clock
from penstock.errors import PenstockError
from penstock.gateway.authorization.rules import Rules
from penstock.gateway.connection.authentication import Authenticator, RefusedError
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.client_registry import ClientRegistry
from penstock.gateway.connection.disconnect import Cause
from penstock.gateway.session import Session
from penstock.mqtt import ReasonCode
from penstock.telemetry import get_logger

LOOK_SECONDS: Final = 0.2
_log = get_logger("gateway")


class Revocation:
    """Looks after who may stay connected."""

    def __init__(
        self,
        authenticator: Authenticator,
        rules: Rules,
        clients: ClientRegistry,
        *,
        patience: float,
    ) -> None:
        self._authenticator = authenticator
        self._rules = rules
        self._clients = clients
        self._patience = patience
        """For how many seconds the file of passwords may be unusable."""
        self._known: object = None
        self._usable_at = boot_clock()
        self._usable = True

    async def watch(self) -> None:
        """Look at the file of passwords again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Look at the file of passwords; end the connections that it no longer allows."""
        try:
            found = self._authenticator.refresh()
        except PenstockError as error:
            if self._usable:
                _log.exception("the file of passwords cannot be used", error=error)
            self._usable = False
            if boot_clock() - self._usable_at > self._patience:
                self._end(it for it in self._opened() if it.session.credential is not None)
            return
        self._usable, self._usable_at = True, boot_clock()
        if found != self._known:
            self._known = found
            self._end(it for it in self._opened() if not self._authenticator.vouches(it.session))

    def check(self, session: Session) -> None:
        """Refuse a client that may not be here, before it is let in."""
        if self._rules.keeps_out(session.user):
            raise RefusedError("this user may not connect", ReasonCode.BANNED, "blocked")
        if not self._authenticator.vouches(session):
            raise RefusedError(
                "the user was changed meanwhile", ReasonCode.NOT_AUTHORIZED, "password"
            )

    def take(self, changed: Collection[str]) -> None:
        """Take note that the definitions of these users have changed, or are gone."""
        rules = self._rules
        ended = {user for user in changed if rules.keeps_out(user) or not rules.defines(user)}
        if ended:
            self._end(it for it in self._opened() if it.session.user in ended)

    def _is_gone(self, session: Session) -> bool:
        """Say whether the user of a client is no more, not only kept out."""
        user = session.user
        undefined = user is not None and not self._rules.defines(user)
        kept_out = undefined and self._rules.keeps_out(user)
        return kept_out or not self._authenticator.knows(session)

    def _opened(self) -> Iterable[ClientConnection]:
        return self._clients.opened()

    def _end(self, clients: Iterable[ClientConnection]) -> None:
        for client in list(clients):
            session = client.session
            if self._is_gone(session):
                session.expiry = 0
            client.context.denials.revocation(session)
            client.end(Cause.REVOKED)
