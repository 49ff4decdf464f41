"""Seals what goes to the broker, and opens what comes from it, on the topics of sealed streams.

    publication ──▶ admitted, recorded ──▶ `seal` ──▶ broker ──▶ `open` ──▶ decided, delivered
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
import json
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple
from uuid import UUID

from penstock.clock import utc_now
from penstock.errors import PenstockError
from penstock.gateway.authorization.request_context import bind
from penstock.gateway.broker import RESERVED
from penstock.json_text import read_object
from penstock.model.document import Document, Key
from penstock.model.kinds import EventType, Stream
from penstock.model.kinds.fields import plain_filter
from penstock.mqtt import PropertyLists, Publish, Sender
from penstock.mqtt.codes import PACKET_SIZE_LIMIT
from penstock.policy.filter_tree import FilterTree
from penstock.store.keys import GroupKeys, StoredKey
from penstock.telemetry import get_logger
from penstock.trust.event_types import TypeRegistry
from penstock.trust.key_ring import GroupKey, KeyRing
from penstock.trust.resources import find_resources
from penstock.trust.sealed_messages import Opener, Sealer, is_sealed, read_sealed

GRACE: Final = 300_000
"""How long gateways may seal with a key that is over, in milliseconds."""
DELAY: Final = 7 * 86_400_000
"""How long a key that is over still opens, in milliseconds: what the broker keeps."""
SKEW: Final = 60_000
"""How far the clocks of domains may differ, in milliseconds."""
_CACHE_LIMIT: Final = 65_536
_LONGEST: Final = 256
_KINDS: Final = frozenset({Stream.kind, EventType.kind})
_RETAIN: Final = 1


@dataclass(frozen=True)
class _Layout:
    """How messages of a topic are sealed."""

    whole: UUID
    by_attributes: bool
    attributes: Mapping[str, UUID] = field(default_factory=dict, compare=False)
    """By friendly name, where each has its own key."""

    @cached_property
    def resources(self) -> frozenset[UUID]:
        """What may be in a message that is sealed by attributes."""
        return frozenset(self.attributes.values())


class SealingError(PenstockError):
    """A message that cannot be sealed, or does not open."""


class Sealing:
    """What is sealed, and the keys for it. Lives on the gateway's loop."""

    def __init__(self, clock: Callable[[], int], delay: int = DELAY) -> None:
        self.in_use = False
        """Whether any stream is sealed."""
        self.ring = KeyRing(grace=GRACE, delay=delay, skew=SKEW)
        self._clock = clock
        self._sealer = Sealer(self.ring, os.urandom)
        self._opener = Opener(self.ring)
        self._documents: dict[Key, Document] = {}
        self._tree: FilterTree[tuple[_Layout, ...]] = FilterTree()
        self._known: dict[str, _Layout | None] = {}
        self._lists = PropertyLists(Sender.SERVER, reserved=RESERVED)

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = [key for key in changed if key.kind in _KINDS]
        if not keys:
            return
        for key in keys:
            self._documents.pop(key, None)
            if key in documents:
                self._documents[key] = documents[key]
        types = {
            key.name: EventType.model_validate({"name": key.name, **it.body})
            for key, it in self._documents.items()
            if key.kind == EventType.kind
        }
        registry = TypeRegistry(types.values())
        self._tree.clear()
        self._known.clear()
        self.in_use = False
        for key, document in sorted(self._documents.items()):
            if key.kind != Stream.kind or document.body.get("sealed") is None:
                continue
            stream = Stream.model_validate({"name": key.name, **document.body})
            layout = _lay_out(stream, types[stream.event_type or ""], registry)
            self.in_use = True
            for pattern in stream.patterns:
                there = plain_filter(pattern)
                before = self._tree.get(there) or ()
                if layout not in before:
                    self._tree.set(there, (*before, layout))

    def take_keys(self, keys: Iterable[GroupKey]) -> None:
        """Hold these keys, and no others."""
        held = list(keys)
        wanted = {(it.resource, it.generation) for it in held}
        for resource in {
            it.resource for it in self.ring if (it.resource, it.generation) not in wanted
        }:
            self.ring.drop(resource)
        for key in held:
            self.ring.add(key)

    def concerns(self, topic: str) -> bool:
        """Say whether messages of a topic are sealed."""
        return self.in_use and self._find(topic) is not None

    def seal_message(
        self, topic: str, payload: bytes, listed: bytes, *, retain: bool = False
    ) -> bytes:
        """Return the payload of a message with this property list as it goes to the broker."""
        if not self.concerns(topic):
            return payload
        return self.seal(topic, payload, retain=retain, bound=bind(self._lists[listed]))

    def seal(
        self, topic: str, payload: bytes, *, retain: bool = False, bound: bytes = b""
    ) -> bytes:
        """Return a payload as it goes to the broker; `SealingError` where it cannot."""
        layout = self._find(topic) if self.in_use else None
        if layout is None or (retain and not payload):
            return payload
        try:
            if not layout.by_attributes:
                return self._sealer.seal_whole(layout.whole, topic, payload, self._clock(), bound)
            parts = _divide(payload, layout.attributes)
            return self._sealer.seal_attributes(layout.whole, topic, parts, self._clock(), bound)
        except PenstockError as error:
            raise SealingError(f"it cannot be sealed: {error}") from None

    def open(self, topic: str, payload: bytes, bound: bytes = b"") -> bytes:
        """Return a payload as it was published; `SealingError` where it does not open."""
        layout = self._find(topic) if self.in_use else None
        if layout is None:
            return payload
        if not is_sealed(payload):
            raise SealingError("it is not sealed, and its stream is")
        now = self._clock()
        sealed = read_sealed(payload)
        if sealed.event_type != layout.whole:
            raise SealingError("it is sealed as an event of another type")
        if not layout.by_attributes:
            opened = self._opener.open_whole(sealed, topic, now, bound)
            if opened is None:
                raise SealingError("no key for it is held")
            return opened
        parts = self._opener.open_attributes(sealed, topic, now, bound)
        if not parts or not parts.keys() <= layout.resources:
            raise SealingError("no key for any of its attributes is held, or it holds another's")
        return _join(parts, layout.attributes)

    def seal_packet(self, packet: Publish, listed: bytes) -> Publish:
        """Return a message as it goes to the broker, with this property list."""
        retain = bool(packet.first & _RETAIN)
        payload = self.seal_message(packet.topic, packet.payload, listed, retain=retain)
        if len(payload) > PACKET_SIZE_LIMIT - len(packet.topic_field) - len(listed):
            raise SealingError("it is too long when it is sealed")
        return packet if payload is packet.payload else replace(packet, payload=payload)

    def open_packet(self, packet: Publish) -> Publish | None:
        """Return a message as it was published; None where it does not open."""
        try:
            payload = self.open(packet.topic, packet.payload, bind(packet.properties))
        except PenstockError:
            return None
        return packet if payload is packet.payload else replace(packet, payload=payload)

    def _find(self, topic: str) -> _Layout | None:
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


_CONFLICT: Final = _Layout(UUID(int=0), by_attributes=False)
"""No key is ever held for it."""


def _lay_out(stream: Stream, event_type: EventType, registry: TypeRegistry) -> _Layout:
    whole, *attributes = find_resources(event_type, registry)
    named = {it.attribute: it.id for it in attributes if it.attribute is not None}
    return _Layout(whole.id, stream.sealed == "attributes", named)


def _divide(payload: bytes, attributes: Mapping[str, UUID]) -> dict[UUID, bytes]:
    content = read_object(payload)
    if content is None:
        raise SealingError("the payload is no JSON object")
    parts: dict[UUID, bytes] = {}
    for name, value in content.items():
        resource = attributes.get(name)
        if resource is None:
            raise SealingError("it has an attribute that its event type does not have")
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except ValueError:
            raise SealingError("it has a number that JSON cannot tell") from None
        parts[resource] = text.encode()
    return parts


def _join(parts: Mapping[UUID, bytes], attributes: Mapping[str, UUID]) -> bytes:
    found = {name: parts[it] for name, it in attributes.items() if it in parts}
    payload = b"{" + b",".join(b'"%b":%b' % (it.encode(), found[it]) for it in found) + b"}"
    content = read_object(payload)
    # Who may seal one attribute could write others into its value.
    if content is None or content.keys() != found.keys():
        raise SealingError("an attribute holds more than its value")
    return payload


LOOK_SECONDS: Final = 1.0
_DESTROY_EVERY: Final = 60_000
"""How often is looked for keys that are to be destroyed, in milliseconds."""
_log = get_logger("gateway")


class GroupKeySource(NamedTuple):
    """Where keys come from, and how long those that are over are kept, in milliseconds."""

    open: Callable[[], GroupKeys]
    delay: int


class GroupKeyFeed:
    """The keys of one gateway."""

    def __init__(
        self,
        sealing: Sealing,
        source: GroupKeySource,
        run_in_thread: Callable[[Callable[[], _Found]], Awaitable[_Found]],
    ) -> None:
        self._sealing = sealing
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
        if not self._sealing.in_use:
            return
        try:
            changes, found = await self._run_in_thread(self._read)
        except PenstockError as error:
            _log.warning("the store does not answer for keys of sealed streams", error=error)
            return
        if found is not None:
            self._seen = changes
            self._sealing.take_keys(GroupKey(*it) for it in found)

    def _read(self) -> _Found:
        if self._keys is None:
            self._keys = self._source.open()
        changes = self._keys.changes()
        if changes == self._seen and _now() < self._next:
            return changes, None
        self._next = _now() + _DESTROY_EVERY
        if self._keys.destroy_old(_now(), self._source.delay):
            changes = self._keys.changes()
        return changes, None if changes == self._seen else self._keys.keys()


def _now() -> int:
    return int(utc_now().timestamp() * 1000)


_Found = tuple[int, list[StoredKey] | None]
