"""Commands on the purpose state, carried out on the subscriptions of connected clients.

    store: epoch 7 CLEAR ──▶ feed ──▶ follow ──▶ each session ──▶ store and broker aligned

Rules that hold here:
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

from collections.abc import Iterable
from dataclasses import replace

from penstock.gateway.authorization.rules import Rules
from penstock.gateway.connection.client_connection import ClientConnection
from penstock.gateway.connection.client_registry import ClientRegistry
from penstock.gateway.connection.subscription_lifecycle import (
    SubscriptionLifecycle,
    stored_filter,
)
from penstock.store.purpose_state import Did, StateCommand
from penstock.store.session_tables import PAUSED
from penstock.store.sessions import StoredSubscription


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
