"""Keeps the rules at the newest epoch, and lets clients and broker know what that means.

    store ──▶ follower (a thread) ──▶ loop ──▶ Rules ──▶ paused, resumed, at rest, awake
                                        ▲
    command ──▶ store ──────────────────┘

Rules that hold here:
- The follower's lease is renewed only when the loop has taken an update over. Beyond the
  lease nothing is known to hold, and everything is denied.
- What was changed by a command here is taken over at once; the follower brings it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from penstock.clock import boot_clock
from penstock.gateway.authorization.definition_changes import concerned_filters, differing
from penstock.gateway.authorization.rules import PURPOSE, Turn
from penstock.gateway.connection import subscription_lifecycle
from penstock.gateway.connection.intake import STALE
from penstock.model.document import Document, Key
from penstock.store.checked import CheckedDefinitions
from penstock.store.definitions import Change
from penstock.store.follower import Follower
from penstock.store.snapshots import Snapshot, Update

if TYPE_CHECKING:
    from penstock.gateway.service.gateway import Gateway

_TAKE_SECONDS = 10.0
_LOOKS_PER_LEASE = 20


class DefinitionFeed:
    """What one gateway knows of the definitions, and how it came to know it."""

    def __init__(
        self, gateway: Gateway, definitions: CheckedDefinitions, follower: Follower
    ) -> None:
        self.definitions = definitions
        """Where commands change the rules; other threads use it."""
        self._gateway = gateway
        self._rules = gateway.rules
        self._follower = follower
        self._unfollow: Callable[[], None] | None = None
        self._tried: frozenset[Key] = frozenset()
        self._was_fresh = False
        self._behind = 0

    async def start(self) -> None:
        """Follow the definitions, and wait until they are known."""
        in_thread = self._gateway.run_in_thread
        self._unfollow = await in_thread(self._follower.subscribe, self._hear)
        await in_thread(self._follower.wait_for, 0, _TAKE_SECONDS)
        self._look_at_lease()

    async def stop(self) -> None:
        """Follow no longer."""
        if self._unfollow is not None:
            await self._gateway.run_in_thread(self._unfollow)

    def take(self, change: Change) -> None:
        """Take over a change that was made here, unless the follower was faster."""
        held = self._rules.snapshot
        if held is None or change.after.epoch <= held.epoch:
            return
        if change.before.mark == held.mark:
            keys: Iterable[Key] = (*change.created, *change.updated, *change.deleted)
        else:
            keys = differing(held, change.after)
        self._take_set(change.after, keys)

    def turn(self, turn: Turn, changed: Iterable[Key] | None = None) -> None:
        """Let the broker know of subscriptions that are paused or resumed.

        What sleeps is tried again where the change concerns it: these keys, or, if none are
        given, what was or is tried out at this gateway alone.
        """
        for subscription in turn.paused:
            client = self._gateway.clients.get(subscription.client)
            if client is not None and client.open:
                subscription_lifecycle.pause(client, subscription)
        for subscription in turn.resumed:
            client = self._gateway.clients.get(subscription.client)
            if client is not None and client.open:
                subscription_lifecycle.resume(client, subscription)
        tried = frozenset(self._rules.unsaved())
        concerned = concerned_filters(self._tried | tried if changed is None else changed)
        self._tried = tried
        if concerned == ():
            return
        for client in self._gateway.clients.values():
            if client.open and client.session.dormant:
                subscription_lifecycle.wake(client, concerned)

    def check(self, wanted: dict[Key, Document | None]) -> None:
        """Raise what is wrong with the definitions that would result. Runs in a thread."""
        _, meaning = self.definitions.current()
        put = [document for document in wanted.values() if document is not None]
        meaning.change(put, [key for key, document in wanted.items() if document is None])

    def _hear(self, update: Update) -> None:
        """Take an update from the follower's thread; return when the loop has it."""
        taken = asyncio.run_coroutine_threadsafe(self._take(update), self._gateway.loop)
        taken.result(_TAKE_SECONDS)

    async def _take(self, update: Update) -> None:
        # An update that is not newer is late: a change made here was taken over before it.
        # Its keys are those since the follower's last one, so never fewer than are new.
        held = self._rules.snapshot
        if held is None or update.snapshot.epoch > held.epoch:
            self._take_set(update.snapshot, update.changed)

    def _take_set(self, snapshot: Snapshot, changed: Iterable[Key]) -> None:
        keys = tuple(changed)
        turn = self._rules.take(snapshot, keys)
        self._gateway.recorder.mappings.take(snapshot.documents, keys)
        if any(key.kind == PURPOSE for key in keys):
            for client in self._gateway.clients.values():
                if client.open:
                    subscription_lifecycle.rest(client)
        self.turn(turn, keys)

    def _look_at_lease(self) -> None:
        status = self._follower.status()
        fresh = status.is_fresh and self._rules.snapshot is not None
        age = status.age if status.age is not None else 0.0
        self._rules.fresh_until = boot_clock() + self._follower.lease - age if fresh else 0.0
        if fresh:
            self._look_for_another_history()
            waiting, self._gateway.waiting = self._gateway.waiting, set()
            for upstream in waiting:
                upstream.resume(STALE)
        if self._was_fresh and not fresh:
            self._gateway.log.error("the definitions are stale: everything is denied")
        self._was_fresh = fresh

    def _look_for_another_history(self) -> None:
        """Take over what the follower has if it stays behind: the store was set back."""
        held = self._rules.snapshot
        known = self._follower.current()
        if held is None or known.mark == held.mark or known.epoch > held.epoch:
            self._behind = 0
            return
        self._behind += 1
        if self._behind > _LOOKS_PER_LEASE:
            self._behind = 0
            self._gateway.log.warning(
                "the store was set back to an earlier epoch", epoch=known.epoch
            )
            self._take_set(known, differing(held, known))

    async def watch_lease(self) -> None:
        """Look at the lease again and again."""
        pause = self._follower.lease / _LOOKS_PER_LEASE
        while True:
            await asyncio.sleep(pause)
            self._look_at_lease()
