"""Brings the keys of sealed streams from the store to the gateway, and destroys old ones.

Rules that hold here:
- The store is looked at once a second, where any stream is sealed, and what is over for longer
  than keys are kept is destroyed there. What it holds is all that is
  held here: a key that was destroyed there opens and seals nothing here a second later.
- Where the store does not answer, the keys stay: definitions that are not fresh deny everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from penstock.clock import utc_now
from penstock.errors import PenstockError
from penstock.gateway.authorization.rules import Rules
from penstock.store.keys import GroupKeys, StoredKey
from penstock.telemetry import get_logger
from penstock.trust.key_ring import GroupKey

LOOK_SECONDS: Final = 1.0
_DESTROY_EVERY: Final = 60_000
"""How often is looked for keys that are to be destroyed, in milliseconds."""
_log = get_logger("gateway")


class GroupKeySource(NamedTuple):
    """Where keys come from, and what becomes of those that are over; in milliseconds."""

    open: Callable[[], GroupKeys]
    delay: int
    """How long they still open what the broker keeps."""
    retention: int
    """How long they open records of the event log; then they are destroyed."""


class GroupKeyFeed:
    """The keys of one gateway."""

    def __init__(
        self,
        rules: Rules,
        source: GroupKeySource,
        run_in_thread: Callable[[Callable[[], _Found]], Awaitable[_Found]],
    ) -> None:
        self._rules = rules
        rules.sealing.ring.delay = source.delay
        self._source = source
        self._run_in_thread = run_in_thread
        self._keys: GroupKeys | None = None
        self._seen = -1
        self._next = 0

    async def watch(self) -> None:
        """Follow the store for as long as the gateway runs."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Take over what changed since the last look."""
        if not self._rules.sealing.in_use:
            return
        try:
            changes, found = await self._run_in_thread(self._read)
        except PenstockError as error:
            _log.warning("the store does not answer for keys of sealed streams", error=error)
            return
        if found is not None:
            self._seen = changes
            self._rules.sealing.take_keys(GroupKey(*it) for it in found)

    def _read(self) -> _Found:
        if self._keys is None:
            self._keys = self._source.open()
        changes = self._keys.changes()
        if changes == self._seen and _now() < self._next:
            return changes, None
        self._next = _now() + _DESTROY_EVERY
        if self._keys.destroy_old(_now(), max(self._source.delay, self._source.retention)):
            changes = self._keys.changes()
        return changes, None if changes == self._seen else self._keys.keys()


def _now() -> int:
    return int(utc_now().timestamp() * 1000)


_Found = tuple[int, list[StoredKey] | None]
