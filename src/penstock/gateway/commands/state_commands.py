"""CLEAR, RESET, PERSIST and RELOAD: commands on the purpose state as a whole; what commands need.

    command ──▶ one transaction: definitions, kept sessions, the log of commands ──▶ feed
                                                                                      │
              every gateway: subscriptions of its clients (`SubscriptionState`) ◀─────┘

Rules that hold here:
- The state is made of reservations, presubscriptions and the purposes of subscriptions. No
  settings are in it: RESET stores those that are set at this gateway, and changes none.
- A command is one epoch: a crash leaves what was before it or what is after it, at all gateways.
- PERSIST keeps the state by the epoch that it makes: history is never rewritten.
- With `auto_persist` off, CLEAR and RESET hold at this gateway alone, as other commands do.
  RELOAD goes back everywhere; where nothing was persisted, it takes back what was tried out here.
- All clients of a gateway together may give so many of them a minute, one after another: each
  may concern all definitions and all clients. After one that takes long, the next one waits
  as long: clients that subscribe need the store, too. Only a few wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from sqlalchemy import Connection

from penstock.errors import PenstockError, UsageError
from penstock.gateway.authorization.rules import SETTINGS, STATE_KINDS, Rules
from penstock.gateway.session import Session
from penstock.model.document import Document, Key
from penstock.mqtt import Publish, ReasonCode
from penstock.policy.purposes.commands import Clear, Persist, Reload, Reset
from penstock.policy.purposes.engine import SubscriptionChanges
from penstock.store import session_state
from penstock.store.definitions.documents import Snapshot
from penstock.store.session_state import STATE, Did, StateLog

Wanted = dict[Key, Document | None]


class CommandSender(Protocol):
    """The client that gave a command."""

    session: Session

    def may_command(self) -> bool:
        """Say whether it has not given too many commands."""
        ...

    def answer(self, packet: Publish, payload: bytes) -> None:
        """Answer a question, to the asker alone."""

    def confirm(self, packet: Publish) -> None:
        """Acknowledge a command that was carried out."""

    def deny(self, packet: Publish, why: str, text: str, reason: ReasonCode) -> None:
        """Tell why a command was not carried out."""


class DefinitionChanges(Protocol):
    """Where commands change the rules."""

    async def edit(
        self,
        work_out: Callable[[Snapshot], Wanted],
        *,
        actor: str,
        reason: str,
        operation: str,
        then: Callable[[Connection], None] | None = None,
        whole: bool = False,
    ) -> None:
        """Change what is stored, and take it over here.

        `then` is done in the same transaction; `whole` allows to edit as many as there are.
        """

    def snapshot_at(self, epoch: int) -> Snapshot:
        """Return what was stored at an epoch; for threads that may wait for the store."""
        ...

    async def check(self, wanted: Wanted) -> None:
        """Raise what is wrong with the definitions that would result."""

    def pass_on(self, changes: SubscriptionChanges) -> None:
        """Let clients and broker know what a change of the rules means."""

    def clear_here(self) -> None:
        """End the subscriptions for purposes of the clients of this gateway."""


_MINUTE = 60.0
_LONG_SECONDS = 1.0
WAITING_LIMIT = 8


class TooManyError(PenstockError):
    """More commands are given than a gateway takes for the moment."""


class CommandBudget:
    """So many commands a minute, by whomever; what was not used is saved up for a minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._cost = _MINUTE / per_minute
        self._clock = clock
        self._paid_until = 0.0

    def take(self) -> bool:
        """Take one from the budget; False where nothing is left."""
        now = self._clock()
        due = max(self._paid_until, now - _MINUTE) + self._cost
        if due > now:
            return False
        self._paid_until = due
        return True


class StateCommands:
    """Carries out commands on the state as a whole."""

    def __init__(self, rules: Rules, definitions: DefinitionChanges, budget: CommandBudget) -> None:
        self._rules = rules
        self._definitions = definitions
        self._budget = budget
        self._one_by_one = asyncio.Lock()
        self._waiting = 0
        self._rests_until = 0.0

    async def carry_out(
        self, sender: CommandSender, command: Clear | Reset | Persist | Reload
    ) -> bool:
        """Carry out a command; say whether the store has it, with its audit entry."""
        if self._waiting >= WAITING_LIMIT or not self._budget.take():
            raise TooManyError("too many commands on the whole state", fix="try again later")
        self._waiting += 1
        try:
            async with self._one_by_one:
                await asyncio.sleep(max(0.0, self._rests_until - time.monotonic()))
                return await self._time(self._carry_out(sender, command))
        finally:
            self._waiting -= 1

    async def _time(self, work: Awaitable[bool]) -> bool:
        """Do something; where it takes long, let nothing else begin for as long."""
        began = time.monotonic()
        try:
            return await work
        finally:
            ended = time.monotonic()
            if ended - began > _LONG_SECONDS:
                self._rests_until = 2 * ended - began

    async def _carry_out(
        self, sender: CommandSender, command: Clear | Reset | Persist | Reload
    ) -> bool:
        match command:
            case Clear():
                return await self._clear(sender, "clear")
            case Reset():
                return await self._clear(sender, "reset")
            case Persist():
                return await self._persist(sender)
            case Reload():
                return await self._reload(sender)

    async def _clear(self, sender: CommandSender, operation: str) -> bool:
        rules = self._rules
        tried = rules.unsaved()
        excepted = rules.excepted()

        def want(now: Snapshot) -> Wanted:
            held = (key for key in (*now.documents, *tried) if key.kind in STATE_KINDS)
            wanted: Wanted = dict.fromkeys(held)
            if operation == "reset":
                wanted |= {key: it for key, it in tried.items() if key.kind == SETTINGS}
            return wanted

        if rules.engine.settings.auto_persist:
            done = "cleared all reservations, presubscriptions and purposes of subscriptions"
            if operation == "reset":
                done += ", settings in force"
            then = partial(session_state.clear, excepted=excepted)
            await self._store(sender, want, then, ("clear", operation, done))
            return True
        if rules.snapshot is not None:
            wanted = want(rules.snapshot)
            await self._definitions.check(wanted)
            self._definitions.pass_on(rules.try_out(wanted))
        self._definitions.clear_here()
        return False

    async def _persist(self, sender: CommandSender) -> bool:
        tried = self._rules.unsaved()
        words: tuple[Did, str, str] = ("persist", "persist", "persisted the purpose state")
        await self._store(sender, lambda _: dict(tried), session_state.persist, words)
        return True

    async def _reload(self, sender: CommandSender) -> bool:
        rules = self._rules
        if rules.state.persisted is None:
            self._definitions.pass_on(rules.reload())
            return False

        def want(now: Snapshot) -> Wanted:
            then = self._find_persisted(now).documents
            held = (key for key in (*now.documents, *then) if key.kind in STATE_KINDS)
            return {key: then.get(key) for key in held}

        words: tuple[Did, str, str] = ("reload", "reload", "reloaded the persisted purpose state")
        await self._store(sender, want, session_state.reload, words)
        return True

    def _find_persisted(self, now: Snapshot) -> Snapshot:
        """Return the set that PERSIST kept, if this history is the one it was kept in."""
        epoch = _log_of(now).persisted
        if epoch is not None and epoch <= now.epoch:
            then = self._definitions.snapshot_at(epoch)
            if _log_of(then).persisted == epoch:
                return then
        raise UsageError(
            "what was persisted is not in the history of this store", fix="give PERSIST first"
        )

    async def _store(
        self,
        sender: CommandSender,
        want: Callable[[Snapshot], Wanted],
        then: Callable[[Connection], None],
        words: tuple[Did, str, str],
    ) -> None:
        did, operation, done = words
        rules = self._rules
        tried = rules.unsaved()
        wanted: Wanted = {}

        def work_out(now: Snapshot) -> Wanted:
            wanted.clear()
            wanted.update(want(now))
            return {**wanted, STATE: _log_of(now).add(did, now.epoch + 1).document()}

        await self._definitions.edit(
            work_out,
            actor=sender.session.principal,
            reason=f"{done} by MQTT command",
            operation=operation,
            then=then,
            whole=True,
        )
        self._definitions.pass_on(rules.settle(wanted, tried))


def _log_of(snapshot: Snapshot) -> StateLog:
    document = snapshot.documents.get(STATE)
    return StateLog.read(document.body if document is not None else None)
