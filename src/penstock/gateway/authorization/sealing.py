"""Seals what goes to the broker, and opens what comes from it, on the topics of sealed streams.

    publication ──▶ admitted ──▶ `seal` ──▶ broker ──▶ `open` ──▶ decided, delivered
    store of group keys ──▶ `GroupKeyFeed` ──▶ the keys that are held here

Rules that hold here:
- Everything on such a topic is sealed, whoever publishes it: clients, actions, wills. What
  cannot be sealed is not published, and what is not sealed is not delivered.
- The one exception is the empty message that deletes what the broker keeps: it holds nothing. It
  is not delivered.
- Attributes whose keys are missing are left out of what subscribers get. Where no key is held
  nothing is delivered.
- Two streams that would seal a topic in different ways seal nothing there: nothing passes.
- The store is looked at once a second, where any stream is sealed, and what is over for longer
  than the delay is destroyed there. What it holds is all that is held here: a key that was
  destroyed there opens and seals nothing here a second later.
- Where the store does not answer, the keys stay: definitions that are not fresh deny everything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from penstock.clock import utc_now
from penstock.errors import PenstockError
from penstock.model.document import Document, Key
from penstock.model.kinds import EventType, Stream
from penstock.model.kinds.fields import plain_filter
from penstock.policy.filter_tree import FilterTree
from penstock.store.key_groups import KeyOffice
from penstock.store.keys import GroupKeys, StoredKey
from penstock.telemetry import get_logger
from penstock.trust.key_ring import GroupKey, KeyRing
from penstock.trust.sealed_events import (
    EventLayout,
    find_layouts,
    open_event,
    seal_event,
)
from penstock.trust.sealed_messages import Opener, Sealer

GRACE: Final = 300_000
"""How long gateways may seal with a key that is over, in milliseconds."""
DELAY: Final = 7 * 86_400_000
"""How long a key that is over still opens, in milliseconds: what the broker keeps."""
SKEW: Final = 60_000
"""How far the clocks of domains may differ, in milliseconds."""
_CACHE_LIMIT: Final = 65_536
_LONGEST: Final = 256


class Sealing:
    """What is sealed, and the keys for it. Lives on the gateway's loop."""

    kinds = frozenset({Stream.kind, EventType.kind})
    """What it follows."""

    def __init__(self, clock: Callable[[], int], delay: int = DELAY) -> None:
        self.in_use = False
        """Whether any stream is sealed."""
        self.ring = KeyRing(grace=GRACE, delay=delay, skew=SKEW)
        self._clock = clock
        self._sealer = Sealer(self.ring, os.urandom)
        self._opener = Opener(self.ring)
        self._documents: dict[Key, Document] = {}
        self._tree: FilterTree[tuple[EventLayout, ...]] = FilterTree()
        self._known: dict[str, EventLayout | None] = {}

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = [key for key in changed if key.kind in self.kinds]
        if not keys:
            return
        for key in keys:
            self._documents.pop(key, None)
            if key in documents:
                self._documents[key] = documents[key]
        of_kind = {
            kind: [it for key, it in sorted(self._documents.items()) if key.kind == kind]
            for kind in self.kinds
        }
        streams = [
            Stream.model_validate({"name": it.name, **it.body})
            for it in of_kind[Stream.kind]
            if it.body.get("sealed") is not None
        ]
        layouts = find_layouts(streams, of_kind[EventType.kind])
        self._tree.clear()
        self._known.clear()
        self.in_use = bool(streams)
        for stream in streams:
            layout = layouts[stream.name]
            for pattern in stream.patterns:
                there = plain_filter(pattern)
                before = self._tree.get(there) or ()
                if layout not in before:
                    self._tree.set(there, (*before, layout))

    def take_keys(self, keys: Iterable[GroupKey]) -> None:
        """Hold these keys, and no others."""
        self.ring.take(list(keys))

    def concerns(self, topic: str) -> bool:
        """Say whether messages of a topic are sealed."""
        return self.in_use and self._find(topic) is not None

    def seal(
        self, topic: str, payload: bytes, *, retain: bool = False, bound: bytes = b""
    ) -> bytes:
        """Return a payload as it goes to the broker; `SealingError` where it cannot."""
        layout = self._find(topic) if self.in_use else None
        if layout is None or (retain and not payload):
            return payload
        return seal_event(self._sealer, layout, topic, payload, self._clock(), bound)

    def open(self, topic: str, payload: bytes, bound: bytes = b"") -> bytes:
        """Return a payload as it was published; `SealingError` where it does not open."""
        layout = self._find(topic) if self.in_use else None
        if layout is None:
            return payload
        return open_event(self._opener, layout, topic, payload, self._clock(), bound)

    def _find(self, topic: str) -> EventLayout | None:
        if topic in self._known:
            return self._known[topic]
        held = {it for layouts in self._tree.matching(topic) for it in layouts}
        layout = next(iter(held)) if len(held) == 1 else None
        if len(held) > 1:
            layout = _CONFLICT
        if len(topic) <= _LONGEST:
            if len(self._known) >= _CACHE_LIMIT:
                self._known.clear()
            self._known[topic] = layout
        return layout


_CONFLICT: Final = EventLayout(UUID(int=0), by_attributes=False)
"""No key is ever held for it."""


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
    office: Callable[[], KeyOffice] | None = None
    """Opens what gives keys out and takes them."""


class GroupKeyFeed:
    """The keys of one gateway."""

    def __init__(
        self,
        sealing: Sealing,
        source: GroupKeySource,
        run_in_thread: Callable[[Callable[[], _Found]], Awaitable[_Found]],
        find_errand: Callable[[], Callable[[], None] | None] = lambda: None,
    ) -> None:
        """Take what tells, on the loop, what is to be done before keys are read."""
        self._find_errand = find_errand
        self._sealing = sealing
        sealing.ring.delay = source.delay
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
        errand = self._find_errand()
        if errand is None and not self._sealing.in_use:
            return
        try:
            changes, found = await self._run_in_thread(partial(self._read, errand))
        except PenstockError as error:
            _log.warning("the store does not answer for keys of sealed streams", error=error)
            return
        if found is not None:
            self._seen = changes
            self._sealing.take_keys(GroupKey(*it) for it in found)

    def _read(self, errand: Callable[[], None] | None) -> _Found:
        if errand is not None:
            errand()
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
