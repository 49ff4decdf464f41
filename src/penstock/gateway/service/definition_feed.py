"""Keeps the rules at the newest epoch, and lets clients and broker know what that means.

    store ──▶ follower (a thread) ──▶ loop ──▶ Rules ──▶ paused, resumed, at rest, awake
                                        ▲
    command ──▶ store ──────────────────┘

Rules that hold here:
- The follower's lease is renewed only when the loop has taken an update over. Beyond the
  lease nothing is known to hold, and everything is denied.
- Opt-outs come by the same follower, and are taken over before it confirms and renews the lease.
- What was changed by a command here is taken over at once; the follower brings it later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from functools import partial

from sqlalchemy import Connection

from penstock.cep.program import Program
from penstock.clock import boot_clock
from penstock.errors import UsageError
from penstock.gateway.authorization.rules import COMPARED, DECIDING, RESERVATION, Rules
from penstock.gateway.connection.client_registry import ClientRegistry, Revocation
from penstock.gateway.connection.subscription_lifecycle import (
    SubscriptionLifecycle,
    SubscriptionState,
)
from penstock.gateway.event_loop import Background, EngineTimer
from penstock.gateway.recording.topic_mapping import TopicMappings
from penstock.model.document import KIND, Document, Key
from penstock.model.kinds import User
from penstock.policy.consent import OptOutIndex
from penstock.policy.purposes.engine import SubscriptionChanges
from penstock.store.definitions.checked import CheckedDefinitions
from penstock.store.definitions.documents import Snapshot, Update
from penstock.store.definitions.history import Change
from penstock.store.follower import Follower, StaleError
from penstock.store.opt_out_feed import OptOutFeed
from penstock.telemetry import get_logger

_TAKE_SECONDS = 10.0
_FIRST_SECONDS = 60.0
"""How long the first look may take: a million opt-outs are read in it."""
_LOOKS_PER_LEASE = 20
_log = get_logger("gateway")


class DefinitionFeed:
    """What one gateway knows of the definitions, and how it came to know it."""

    def __init__(
        self,
        definitions: CheckedDefinitions,
        follower: Follower,
        *,
        rules: Rules,
        follow_program: Callable[[Program], None],
        mappings: TopicMappings,
        clients: ClientRegistry,
        revocation: Revocation,
        lifecycle: SubscriptionLifecycle,
        state: SubscriptionState,
        background: Background,
        opt_outs: OptOutFeed | None = None,
    ) -> None:
        self._definitions = definitions
        self._opt_outs = opt_outs
        self._follower = follower
        self._rules = rules
        self._follow_program = follow_program
        self._mappings = mappings
        self._clients = clients
        self._revocation = revocation
        self._lifecycle = lifecycle
        self._state = state
        self._background = background
        self._loop = asyncio.get_running_loop()
        self._unfollow: Callable[[], None] | None = None
        self._tried: frozenset[Key] = frozenset()
        self._was_fresh = False
        self._behind = 0
        self._role_timer = EngineTimer(self.advance_roles)
        self._built_on: set[str] = set()
        """Marks of what changes made here were built on, since the follower's last update."""

    async def start(self) -> None:
        """Follow the definitions, and wait until they are known."""
        in_thread = self._background.run_in_thread
        if self._opt_outs is not None:
            await in_thread(self._opt_outs.subscribe, self._hear_opt_outs)
        self._unfollow = await in_thread(self._follower.subscribe, self._hear)
        await in_thread(self._follower.wait_for, 0, _FIRST_SECONDS)
        self._look_at_lease()
        # A store that is no longer the one on disk is noticed between two looks at the lease.
        self._follower.call_when_lease_changes(
            partial(self._loop.call_soon_threadsafe, self._look_at_lease)
        )

    async def stop(self) -> None:
        """Follow no longer."""
        self._role_timer.cancel()
        if self._unfollow is not None:
            await self._background.run_in_thread(self._unfollow)

    async def edit(
        self,
        work_out: Callable[[Snapshot], dict[Key, Document | None]],
        *,
        actor: str,
        reason: str,
        operation: str,
        then: Callable[[Connection], None] | None = None,
        whole: bool = False,
    ) -> None:
        """Change what is stored, and take it over here."""
        in_thread = self._background.run_in_thread
        edit = partial(
            self._definitions.edit,
            work_out,
            actor=actor,
            reason=reason,
            operation=operation,
            then=None if then is None else lambda connection, _: then(connection),
            whole=whole,
        )
        change = await in_thread(edit)
        held = self._rules.snapshot
        # Held is more than the change where the follower was faster, or another change made here,
        # or where the store was set back meanwhile: of that history it knows nothing.
        if held is not None and held.epoch >= change.after.epoch:
            same = held.mark == change.after.mark or await in_thread(self._is_stored, held)
            if not same and self._rules.snapshot is held:
                self._take_other(held, change.after)
            return
        self._take_change(change)

    def snapshot_at(self, epoch: int) -> Snapshot:
        """Return what was stored at an epoch; for threads that may wait for the store."""
        return self._definitions.definitions.snapshot_at(epoch)

    def clear_here(self) -> None:
        """End the subscriptions for purposes of the clients of this gateway."""
        self._state.clear_here()

    async def check(self, wanted: dict[Key, Document | None]) -> None:
        """Raise what is wrong with the definitions that would result."""
        await self._background.run_in_thread(self._check, wanted)

    def _take_change(self, change: Change) -> None:
        """Take over a change that was made here."""
        held = self._rules.snapshot
        keys: Iterable[Key] = (*change.created, *change.updated, *change.deleted)
        if held is not None and change.before.mark != held.mark:
            self._built_on.clear()
            keys = differing(held, change.after)
        self._built_on.add(change.before.mark)
        self._take_set(change.after, keys)

    def pass_on(self, changes: SubscriptionChanges, changed: Iterable[Key] | None = None) -> None:
        """Let the broker know of subscriptions that are paused or resumed.

        What nobody may hold any longer is put to sleep, and what sleeps is tried again, where the
        change concerns it: these keys, or, if none are given, what was or is tried out at this
        gateway alone.
        """
        for subscription in changes.paused:
            client = self._clients.get(subscription.client)
            if client is not None and client.open:
                self._lifecycle.pause(client, subscription)
        for subscription in changes.resumed:
            client = self._clients.get(subscription.client)
            if client is not None and client.open:
                self._lifecycle.resume(client, subscription)
        tried = frozenset(self._rules.unsaved())
        keys = self._tried | tried if changed is None else tuple(changed)
        self._tried = tried
        if self._rules.concerns_claims(set(map(KIND, keys))):
            for client in self._clients.opened():
                self._lifecycle.rest(client)
        concerned = concerned_filters(keys)
        if concerned == ():
            return
        for client in self._clients.opened():
            if client.session.dormant:
                self._lifecycle.wake(client, concerned)

    def _check(self, wanted: dict[Key, Document | None]) -> None:
        _, meaning = self._definitions.current()
        put = [document for document in wanted.values() if document is not None]
        meaning.change(put, [key for key, document in wanted.items() if document is None])

    def _is_stored(self, snapshot: Snapshot) -> bool:
        """Say whether the store knows an epoch that is held here."""
        try:
            return self._definitions.definitions.snapshot_at(snapshot.epoch).mark == snapshot.mark
        except UsageError:
            return False

    def _hear(self, update: Update) -> None:
        """Take an update from the follower's thread; return when the loop has it."""
        taken = asyncio.run_coroutine_threadsafe(self._take(update), self._loop)
        taken.result(_TAKE_SECONDS)

    def _hear_opt_outs(self, opt_outs: OptOutIndex, changed: frozenset[int] | None) -> None:
        """Take opt-outs from the follower's thread; return when the loop has them."""

        async def take() -> None:
            self._rules.take_opt_outs(opt_outs, changed)

        asyncio.run_coroutine_threadsafe(take(), self._loop).result(_TAKE_SECONDS)

    async def _take(self, update: Update) -> None:
        # An update that is not newer is late: a change made here was taken over before it.
        # Its keys are those since the follower's last one, so never fewer than are new.
        held = self._rules.snapshot
        if update.snapshot.mark in self._built_on:
            return
        self._built_on.clear()
        if held is not None and update.is_other_history:
            # What is held may be newer than what the follower compared with, and from before.
            _log.warning("the store tells another history", epoch=update.snapshot.epoch)
            self._take_other(held, update.snapshot)
        elif held is None or update.snapshot.epoch > held.epoch:
            self._take_set(update.snapshot, update.changed)

    def _take_other(self, held: Snapshot, snapshot: Snapshot) -> None:
        """Take over a set that is not the next one of the history that is known."""
        self._state.set_back(snapshot.epoch)
        self._take_set(snapshot, differing(held, snapshot), is_other_history=True)

    def _take_set(
        self, snapshot: Snapshot, changed: Iterable[Key], *, is_other_history: bool = False
    ) -> None:
        keys = tuple(changed)
        changes = self._rules.take(snapshot, keys, is_other_history=is_other_history)
        if changes.program is not None:
            self._follow_program(changes.program)
        kinds = set(map(KIND, keys))
        if not kinds.isdisjoint(self._mappings.kinds):
            self._mappings.take(snapshot.documents, keys)
        if User.kind in kinds:
            self._revocation.take({key.name for key in keys if key.kind == User.kind})
        if changes.compiled:
            self._revocation.take_names()
        self.pass_on(changes.subscriptions, keys)
        if changes.compiled:
            self._follow_roles(changes.roles)
        if changes.commands:
            self._state.follow(changes.commands)

    def advance_roles(self) -> None:
        """Let time pass for roles: what is over, or out of its hours, is revoked."""
        self._follow_roles(self._rules.advance_roles())

    def _follow_roles(self, changed: Collection[tuple[str, str]]) -> None:
        """Let subscriptions follow the roles of these sessions, and look again when it is due."""
        for _, client_id in changed:
            client = self._clients.get(client_id)
            if client is not None and client.open:
                self._lifecycle.rest(client)
                self._lifecycle.wake(client, None)
        due = self._rules.roles_due
        if due is not None:
            self._role_timer.schedule(due, self._rules.clock())

    def _look_at_lease(self) -> None:
        status = self._follower.status()
        known: Snapshot | None = None
        # The lease may run out between the two; the next look tells.
        with contextlib.suppress(StaleError):
            known = self._follower.current() if status.is_fresh else None
        fresh = known is not None and self._rules.snapshot is not None
        age = status.age if status.age is not None else 0.0
        self._rules.fresh_until = boot_clock() + self._follower.lease - age if fresh else 0.0
        if known is not None and fresh:
            self._look_for_another_history(known)
            self._clients.tell_fresh()
        if self._was_fresh and not fresh:
            _log.error("the definitions are stale: everything is denied")
        self._was_fresh = fresh

    def _look_for_another_history(self, known: Snapshot) -> None:
        """Take over what the follower has if it stays behind: the store was set back."""
        held = self._rules.snapshot
        if held is None or known.mark == held.mark or known.epoch > held.epoch:
            self._behind = 0
            return
        self._behind += 1
        if self._behind > _LOOKS_PER_LEASE:
            self._behind = 0
            _log.warning("the store was set back to an earlier epoch", epoch=known.epoch)
            self._take_other(held, known)

    async def watch_lease(self) -> None:
        """Look at the lease again and again."""
        pause = self._follower.lease / _LOOKS_PER_LEASE
        while True:
            await asyncio.sleep(pause)
            self._look_at_lease()


def concerned_filters(changed: Iterable[Key]) -> tuple[str, ...] | None:
    """Return the filters that changes concern; None where that is all, or too many to compare."""
    filters: list[str] = []
    for key in changed:
        if key.kind == RESERVATION:
            filters.append(key.name)
        elif key.kind in DECIDING:
            return None
    return tuple(filters) if len(filters) <= COMPARED else None


def differing(held: Snapshot, snapshot: Snapshot) -> list[Key]:
    """Return the keys of what is not the same in two sets of definitions."""
    before, now = held.documents, snapshot.documents
    changed = [key for key, document in now.items() if before.get(key) != document]
    return [*changed, *(key for key in before if key not in now)]
