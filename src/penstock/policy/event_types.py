"""Event types: which attributes the messages of a topic have, by the streams that they feed.

    topic ──▶ the patterns of streams (`from`) ──▶ layout: where each attribute stands, cached
    message, layout ──▶ `r`: the attributes of the event, each of its declared type or missing

The fields of a stream are the type of its events: there is no second language of schemas.

Rules that hold here:
- An attribute is found as recording finds the field (`topic_mapping`): a level of the topic, what
  the gateway adds, else the payload. What has another type than declared is missing.
- A subscriber sees topic, user properties and payload. Who published is not an attribute: a filter
  would tell whoever may not know.
- What content filters see of a text is all of it, or nothing: a long one is missing, so that no
  message makes a filter dear.
- A topic may feed several streams. An attribute that two of them find with different values is
  missing; one that two streams of a filter declare with different types is none.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from typing import Any, Final, NamedTuple

from penstock.lang import BOOL, DOUBLE, INT, STRING, TIMESTAMP, RecordType, Type
from penstock.lang.errors import MAX_EXACT
from penstock.lang.scalars import is_text, read_timestamp
from penstock.model.document import Document, Key
from penstock.model.kinds import Stream
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.model.kinds.streams import StreamField
from penstock.model.topics import overlaps
from penstock.policy.access.requests import Message
from penstock.policy.filter_tree import FilterTree

_CACHE_LIMIT: Final = 65_536
_LONGEST: Final = 256
TEXT_SEEN: Final = 1_024
"""The longest text that a content filter sees."""
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_SINGLE: Final = struct.Struct("<f")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


def _read_string(value: Any) -> str | None:
    return value if type(value) is str and is_text(value) else None


def _read_int(value: Any) -> int | None:
    return value if type(value) is int and -(2**31) <= value < 2**31 else None


def _read_long(value: Any) -> int | None:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _read_double(value: Any) -> float | None:
    if type(value) is float:
        return value if math.isfinite(value) else None
    return float(value) if type(value) is int and abs(value) <= MAX_EXACT else None


def _read_float(value: Any) -> float | None:
    number = _read_double(value)
    try:
        # 32 bits, as in views: both must see the same number.
        return None if number is None else float(_SINGLE.unpack(_SINGLE.pack(number))[0])
    except OverflowError:
        return None


def _read_bool(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _read_timestamp(value: Any) -> datetime | None:
    return read_timestamp(value) if type(value) is str else None


def _read_date(value: Any) -> datetime | None:
    if type(value) is not str or not _DATE.fullmatch(value):
        return None
    try:
        return datetime.combine(date.fromisoformat(value), time(), UTC)
    except ValueError:
        return None


class _Kind(NamedTuple):
    """A type of fields: as expressions see it, and how a value of JSON is read."""

    type: Type
    read: Callable[[Any], Any]


_KINDS: Final[Mapping[str, _Kind]] = {
    "string": _Kind(STRING, _read_string),
    "int": _Kind(INT, _read_int),
    "long": _Kind(INT, _read_long),
    "float": _Kind(DOUBLE, _read_float),
    "double": _Kind(DOUBLE, _read_double),
    "boolean": _Kind(BOOL, _read_bool),
    "date": _Kind(TIMESTAMP, _read_date),
    "timestamp": _Kind(TIMESTAMP, _read_timestamp),
}


class Attribute(NamedTuple):
    """Where the messages of a topic have an attribute of a stream."""

    name: str
    kind: _Kind
    fixed: Any = None
    """What the topic tells."""
    user_property: str | None = None
    path: tuple[str, ...] = ()
    """The way into the payload."""
    optional: bool = False

    def find(self, message: Message) -> Any:
        """Return the value in a message; None where it is missing or of another type."""
        if self.path:
            value: Any = message.content
            for step in self.path:
                value = value.get(step) if isinstance(value, Mapping) else None
            return None if value is None else self.kind.read(value)
        if self.user_property is not None:
            return _read_text(message.user_property(self.user_property), self.kind)
        return self.fixed


class EventType(NamedTuple):
    """A stream as the type of the messages of one topic."""

    name: str
    attributes: tuple[Attribute, ...]
    conform: bool = False
    """Whether messages that are not of this type are refused."""


class EventTypes:
    """The event types of the streams in force."""

    kinds = frozenset({Stream.kind})
    """What they follow."""

    def __init__(self) -> None:
        self.generation = 0
        """Rises with every change: what was read before may have other types now."""
        self._streams: dict[str, Stream] = {}
        self._tree: FilterTree[tuple[tuple[Stream, int, str], ...]] = FilterTree()
        self._known: dict[str, tuple[EventType, ...]] = {}

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> bool:
        """Take over definitions of which these may differ; tell whether types changed."""
        keys = [key for key in changed if key.kind == Stream.kind]
        for key in keys:
            self._streams.pop(key.name, None)
        held = (documents[key] for key in keys if key in documents)
        if keys:
            self.put(Stream.model_validate({"name": it.name, **it.body}) for it in held)
        return bool(keys)

    def put(self, streams: Iterable[Stream]) -> None:
        """Take over streams, each in the place of the one that has its name."""
        self._streams |= {it.name: it for it in streams if it.patterns}
        self.generation += 1
        self._tree.clear()
        self._known.clear()
        for _, stream in sorted(self._streams.items()):
            for rank, pattern in enumerate(stream.patterns):
                there = plain_filter(pattern)
                before = self._tree.get(there) or ()
                self._tree.set(there, (*before, (stream, rank, pattern)))

    def of(self, topic: str) -> tuple[EventType, ...]:
        """Return the types of a topic's messages: one for each stream that they feed."""
        if not self._streams:
            return ()
        known = self._known.get(topic)
        if known is None:
            known = tuple(self._find(topic))
            if len(topic) <= _LONGEST:
                if len(self._known) >= _CACHE_LIMIT:
                    self._known.clear()
                self._known[topic] = known
        return known

    def read(self, message: Message) -> dict[str, Any]:
        """Return the attributes of a message, as `r`; what is missing has no name there."""
        found: dict[str, Any] = {}
        apart: set[str] = set()
        for event_type in self.of(message.topic):
            for attribute in event_type.attributes:
                name, value = attribute.name, attribute.find(message)
                if name not in found:
                    found[name] = value
                elif type(found[name]) is not type(value) or found[name] != value:
                    apart.add(name)
        return {
            name: it
            for name, it in found.items()
            if it is not None
            and name not in apart
            and not (type(it) is str and len(it) > TEXT_SEEN)
        }

    @property
    def in_use(self) -> bool:
        """Whether there are any."""
        return bool(self._streams)

    def are_checked(self, topic: str) -> bool:
        """Tell whether messages of a topic have to be of their type."""
        return any(it.conform for it in self.of(topic))

    def find_other(self, topic: str, message: Message | None) -> tuple[str, str] | None:
        """Return the stream that a message is none of although it has to be, and why."""
        for event_type in self.of(topic):
            if event_type.conform:
                why = _find_fault(event_type, message)
                if why is not None:
                    return event_type.name, why
        return None

    def describe(self, filter_: str, visible: Callable[[str], bool] = lambda _: True) -> RecordType:
        """Return `r` for a filter: the attributes that messages of its topics may have.

        `visible` says of the filter of a pattern whether its messages may be told of.
        """
        kinds: dict[str, set[Type]] = {}
        for stream in self._streams.values():
            for pattern in stream.patterns:
                there = plain_filter(pattern)
                if overlaps(filter_, there) and visible(there):
                    for it in stream.fields:
                        if _is_seen(stream, it):
                            kinds.setdefault(it.name, set()).add(_KINDS[it.type].type)
        return RecordType(
            tuple((name, next(iter(it))) for name, it in sorted(kinds.items()) if len(it) == 1)
        )

    def _find(self, topic: str) -> Iterator[EventType]:
        if topic.startswith("$"):
            return
        seen: set[str] = set()
        found = (it for held in self._tree.matching(topic) for it in held)
        # A message is recorded once in a stream, by the first of its patterns that fits.
        for stream, _, pattern in sorted(found, key=lambda it: (it[0].name, it[1])):
            if stream.name not in seen:
                seen.add(stream.name)
                yield EventType(
                    stream.name, tuple(_lay_out(stream, pattern, topic)), stream.conform
                )


def _find_fault(event_type: EventType, message: Message | None) -> str | None:
    if message is None or message.content is None:
        return "the payload is not a JSON object"
    for attribute in event_type.attributes:
        if attribute.find(message) is not None:
            continue
        if not attribute.optional:
            return f"{attribute.name} is missing, or of another type"
        if attribute.path and _stands_there(attribute.path, message.content):
            return f"{attribute.name} is of another type"
    return None


def _stands_there(path: tuple[str, ...], content: Mapping[str, Any]) -> bool:
    value: Any = content
    for step in path:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value is not None


def _is_seen(stream: Stream, field: StreamField) -> bool:
    """Say whether a field is an attribute that subscribers see, and that a gateway can read."""
    if stream.adds is not None and field.name == stream.adds.publisher:
        return False
    if stream.format != "avro":
        return True
    return field.name in {name for it in stream.patterns for name in named_levels(it).values()}


def _lay_out(stream: Stream, pattern: str, topic: str) -> Iterator[Attribute]:
    levels = {name: place for place, name in named_levels(pattern).items()}
    elsewhere = {name for it in stream.patterns for name in named_levels(it).values()}
    adds = stream.adds
    parts = topic.split("/")
    for field in stream.fields:
        kind = _KINDS[field.type]
        made = Attribute(field.name, kind, optional=field.optional)
        if not _is_seen(stream, field):
            continue
        if field.name in levels:
            yield made._replace(fixed=_read_text(parts[levels[field.name]], kind))
        elif adds is not None and field.name == adds.topic:
            yield made._replace(fixed=topic)
        elif adds is not None and field.name in adds.properties:
            yield made._replace(user_property=adds.properties[field.name])
        elif field.name not in elsewhere:
            path = ("payload", field.name) if stream.format == "connect" else (field.name,)
            yield made._replace(path=path)


def _read_text(text: str | None, kind: _Kind) -> Any:
    """Return a text of the topic or of a property as a value."""
    if text is None:
        return None
    if kind.type != INT:
        return kind.read(text)
    return kind.read(int(text)) if _NUMBER.fullmatch(text) else None
