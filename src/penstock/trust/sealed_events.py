"""Events of signed types, sealed whole or attribute by attribute: at a broker, and in an event log.

    payload ──divide──▶ attributes ──seal──▶ one sealed message ──open──▶ what keys allow ──join──▶

Rules that hold here:
- What is not sealed, or sealed as another type, is refused where its stream is sealed.
- An event that holds what its type does not have cannot be sealed by attributes: there is no key.
- Who may seal one attribute cannot write others into its value.
- Records of an event log are bound as records: no message of a broker passes for one, and no
  record for a message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final
from uuid import UUID

from penstock.errors import PenstockError
from penstock.json_text import read_object
from penstock.model.document import Document
from penstock.model.kinds import EventType, Stream
from penstock.trust.event_types import TypeRegistry, find_resources
from penstock.trust.sealed_messages import Opener, Sealer, is_sealed, read_sealed

AS_RECORD: Final = b"\xff\xff\xff\xffpenstock record"
"""What records are bound to besides their topic: no properties of a message begin so."""


# Made once: `json.dumps` would make one for each attribute.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class SealingError(PenstockError):
    """A message that cannot be sealed, or does not open."""


class ClosedEventError(SealingError):
    """A message for which no key is held."""


@dataclass(frozen=True)
class EventLayout:
    """How events of a stream are sealed."""

    whole: UUID
    by_attributes: bool
    attributes: Mapping[str, UUID] = field(default_factory=dict, compare=False)
    """By friendly name, where each has its own key."""

    @cached_property
    def resources(self) -> frozenset[UUID]:
        """What may be in a message that is sealed by attributes."""
        return frozenset(self.attributes.values())


def find_layouts(streams: Iterable[Stream], types: Iterable[Document]) -> dict[str, EventLayout]:
    """Return how events of sealed streams are sealed, by the names of the streams."""
    wanted = [it for it in streams if it.sealed is not None]
    if not wanted:
        return {}
    known = {it.name: EventType.model_validate({"name": it.name, **it.body}) for it in types}
    registry = TypeRegistry(known.values())
    made = {}
    for stream in wanted:
        whole, *attributes = find_resources(known[stream.event_type or ""], registry)
        named = {it.attribute: it.id for it in attributes if it.attribute is not None}
        made[stream.name] = EventLayout(whole.id, stream.sealed == "attributes", named)
    return made


def seal_event(
    sealer: Sealer, layout: EventLayout, place: str, payload: bytes, now: int, bound: bytes = b""
) -> bytes:
    """Return an event sealed for a topic; an error where it cannot be."""
    try:
        if not layout.by_attributes:
            return sealer.seal_whole(layout.whole, place, payload, now, bound)
        parts = _divide(payload, layout.attributes)
        return sealer.seal_attributes(layout.whole, place, parts, now, bound)
    except PenstockError as error:
        raise SealingError(f"it cannot be sealed: {error}") from None


def open_event(
    opener: Opener, layout: EventLayout, place: str, payload: bytes, now: int, bound: bytes = b""
) -> bytes:
    """Return an event as far as keys allow; an error where it does not open."""
    if not is_sealed(payload):
        raise SealingError("it is not sealed, and its stream is")
    sealed = read_sealed(payload)
    if sealed.event_type != layout.whole:
        raise SealingError("it is sealed as an event of another type")
    if not layout.by_attributes:
        opened = opener.open_whole(sealed, place, now, bound)
        if opened is None:
            raise ClosedEventError("no key for it is held")
        return opened
    parts = opener.open_attributes(sealed, place, now, bound)
    if not parts:
        raise ClosedEventError("no key for any of its attributes is held")
    if not parts.keys() <= layout.resources:
        raise SealingError("it holds an attribute of another type")
    return _join(parts, layout.attributes)


def _divide(payload: bytes, attributes: Mapping[str, UUID]) -> dict[UUID, bytes]:
    content = read_object(payload)
    if content is None:
        raise SealingError("the payload is not a JSON object")
    parts: dict[UUID, bytes] = {}
    for name, value in content.items():
        resource = attributes.get(name)
        if resource is None:
            raise SealingError("it has an attribute that its event type does not have")
        try:
            text = _ENCODER.encode(value)
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
