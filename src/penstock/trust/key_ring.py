"""The keys under which messages are sealed: one for each event type or attribute, and generation.

Rules that hold here:
- A key belongs to a resource (the UUID of an event type, or of an attribute) and a generation,
  and counts from its start until the next one starts. The time of publication tells which
  generations may have sealed a message; the generation in the message says which one did.
- What says that it was published with a generation that was over for longer than the grace is
  refused: the grace covers gateways that learn of a new generation late, and no more.
- A key that is over for longer than the delay opens nothing any more: the delay covers what the
  broker keeps for those who are away. Records of an event log open for as long as keys are kept.
- A mark stands for a key in a message. It follows from the secret, so that only who holds
  the key can tell which attribute is meant; it changes with each generation.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from uuid import UUID

from penstock.errors import PenstockError

SECRET_BYTES: Final = 32
MARK_BYTES: Final = 8


class NoKeyError(PenstockError):
    """No key of a resource is held that may be used at this time."""


@dataclass(frozen=True)
class GroupKey:
    """One generation of the key of a resource; times are milliseconds since 1970."""

    resource: UUID
    generation: int
    start: int
    secret: bytes = field(repr=False)

    @cached_property
    def mark(self) -> bytes:
        """What stands for this key in a message."""
        named = self.resource.bytes + self.generation.to_bytes(4, "big")
        return hmac.digest(self.secret, b"penstock key mark" + named, "sha256")[:MARK_BYTES]


class KeyRing:
    """The keys that a gateway holds. Used by one thread."""

    def __init__(self, *, grace: int, delay: int, skew: int) -> None:
        """Take grace and delay after the end of a key, and how far clocks may differ, in ms."""
        self._grace = grace
        self.delay = delay
        self._skew = skew
        self._by_resource: dict[UUID, list[GroupKey]] = {}
        self._by_mark: dict[bytes, GroupKey] = {}

    def __iter__(self) -> Iterator[GroupKey]:
        for keys in self._by_resource.values():
            yield from keys

    def add(self, key: GroupKey) -> None:
        """Hold a key from now on; a generation that is there already stays as it is."""
        keys = self._by_resource.setdefault(key.resource, [])
        if any(it.generation == key.generation for it in keys):
            return
        keys.append(key)
        keys.sort(key=lambda it: it.generation)
        self._by_mark[key.mark] = key

    def take(self, keys: Collection[GroupKey]) -> None:
        """Hold these keys, and no others."""
        wanted = {(it.resource, it.generation) for it in keys}
        for resource in {it.resource for it in self if (it.resource, it.generation) not in wanted}:
            self.drop(resource)
        for key in keys:
            self.add(key)

    def drop(self, resource: UUID) -> None:
        """Forget all keys of a resource."""
        for key in self._by_resource.pop(resource, ()):
            del self._by_mark[key.mark]

    def newest(self, resource: UUID, now: int) -> GroupKey:
        """Return the key to seal with: the last that has started, or else the first."""
        keys = self._by_resource.get(resource)
        if not keys:
            message = f"no key of {resource} is held → join its key group first"
            raise NoKeyError(message)
        for key in reversed(keys):
            if key.start <= now:
                return key
        return keys[0]

    def find(self, mark: bytes, published: int, now: int) -> GroupKey | None:
        """Return the key of a mark if it may have sealed a message of this time of publication."""
        key = self._by_mark.get(mark)
        if key is None or published < key.start or published > now + self._skew:
            return None
        end = self._end_of(key)
        if end is None:
            return key
        return key if published <= end + self._grace and now <= end + self.delay else None

    def destroy_old(self, now: int) -> int:
        """Forget keys that ended longer ago than the delay; return how many."""
        old = [
            key for key in self if (end := self._end_of(key)) is not None and now > end + self.delay
        ]
        for key in old:
            self._by_resource[key.resource].remove(key)
            del self._by_mark[key.mark]
        return len(old)

    def _end_of(self, key: GroupKey) -> int | None:
        keys = self._by_resource[key.resource]
        if keys[-1] is key:
            return None
        later = keys.index(key) + 1
        return keys[later].start if later < len(keys) else None
