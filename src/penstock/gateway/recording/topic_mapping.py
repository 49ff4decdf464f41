"""Maps MQTT topics to streams, and a message to the key and value of its record.

    topic ──▶ the patterns of streams (`from`) ──▶ mappings: one for each stream, cached
    message, mapping ──▶ key and value of a record

Rules that hold here:
- A message is recorded once in a stream, by the first of its patterns that fits; it may feed
  several streams.
- The value is the payload as it came. Only where a pattern names levels, or the stream asks
  for the topic, the publisher or user properties, it is written anew with these as fields:
  what the gateway knows goes before what the payload says, for it is what was authorised. A
  field that some pattern of the stream fills is the gateway's alone: by another it is null.
- A payload that is not a JSON object to `json_text` is recorded behind a mark: the pipeline sets
  it aside with the reason, nothing is lost on the way there, and no view believes what the
  gateway could not read. So is one that is too long with what is added to it; its end is cut.
- The key is the person that the record is about, where the stream says which field that is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.eventlog.files import MAX_KEY
from penstock.json_text import UNREAD, read_object
from penstock.model.document import Document, Key
from penstock.model.kinds import EventType, Stream
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.policy.access.requests import collect
from penstock.policy.filter_tree import FilterTree
from penstock.trust.sealed_events import EventLayout, find_layouts

MAX_VALUE: Final = 1_000_000
"""The longest payload that every event log takes."""

_KNOWN_LIMIT: Final = 65_536
_LONGEST_KNOWN: Final = 256
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBERS: Final = frozenset({"int", "long"})


class Target(NamedTuple):
    """Where the records of a stream are kept: its topic, in files or at Kafka."""

    topic: str
    at_kafka: bool
    shredded: bool = False
    """Whether each record is sealed under the key of its person."""
    event: EventLayout | None = None
    """How records are sealed under the keys of their event type."""


class TopicMapping:
    """One pattern of a stream."""

    __slots__ = (
        "_bytes",
        "_enveloped",
        "_levels",
        "_nulls",
        "_properties",
        "_publisher",
        "_subject",
        "_topic",
        "rank",
        "target",
    )

    def __init__(
        self, stream: Stream, rank: int, pattern: str, event: EventLayout | None = None
    ) -> None:
        types = {field.name: field.type for field in stream.fields}
        source = stream.source
        self.target = Target(
            stream.topic,
            source is not None and source.kafka is not None,
            stream.erasure == "shred",
            event,
        )
        self.rank = rank
        self._levels = tuple(
            (place, name, types[name] in _NUMBERS) for place, name in named_levels(pattern).items()
        )
        own = {name for _, name, _ in self._levels}
        filled = (named_levels(it).values() for it in stream.patterns)
        self._nulls = {name: None for names in filled for name in names if name not in own}
        self._bytes = stream.format == "avro"
        self._subject = stream.subject
        self._enveloped = stream.format == "connect"
        self._topic = stream.adds.topic if stream.adds else None
        self._publisher = stream.adds.publisher if stream.adds else None
        properties = stream.adds.properties if stream.adds else {}
        self._properties = tuple(
            (name, told, types[name] in _NUMBERS) for name, told in properties.items()
        )

    def record(
        self,
        topic: str,
        payload: bytes,
        publisher: str | None = None,
        properties: Iterable[tuple[str, str]] = (),
    ) -> tuple[bytes, bytes]:
        """Return the key and the value of the record that a message becomes."""
        if self._bytes:
            return b"", payload
        levels = topic.split("/") if self._levels else []
        said: dict[str, Any] = self._nulls | {
            name: _read_text(levels[place], number) for place, name, number in self._levels
        }
        if self._properties:
            held_properties = collect(properties)
            for name, told, number in self._properties:
                text = held_properties.get(told)
                said[name] = None if text is None else _read_text(text, number)
        if self._topic is not None:
            said[self._topic] = topic
        if self._publisher is not None:
            said[self._publisher] = publisher
        held = read_object(payload)
        value = payload if held is not None else b""
        if held is not None and said:
            value = _write_object(held | said)
        if held is not None and self._enveloped:
            held = held.get("payload")
        fields = held | said if isinstance(held, dict) else said
        key = _key(fields.get(self._subject) if self._subject else None)
        return key, value or (UNREAD + payload)[:MAX_VALUE]


class TopicMappings:
    """The topic mappings of the definitions in force."""

    kinds = frozenset({Stream.kind, EventType.kind})
    """What they follow."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[TopicMapping, ...]] | None = None
        """The cache, for a first look; None where no message feeds a stream."""
        self._streams: dict[str, Stream] = {}
        self._types: dict[str, Document] = {}
        self._tree: FilterTree[tuple[TopicMapping, ...]] = FilterTree()

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = [key for key in changed if key.kind in self.kinds]
        if not keys:
            return
        for key in keys:
            if key.kind == EventType.kind:
                self._types.pop(key.name, None)
                if key in documents:
                    self._types[key.name] = documents[key]
                continue
            self._streams.pop(key.name, None)
            if key in documents:
                stream = Stream.model_validate({"name": key.name, **documents[key].body})
                if stream.patterns:
                    self._streams[key.name] = stream
        layouts = find_layouts(self._streams.values(), self._types.values())
        self._tree.clear()
        for _, stream in sorted(self._streams.items()):
            for rank, pattern in enumerate(stream.patterns):
                there = plain_filter(pattern)
                mapping = TopicMapping(stream, rank, pattern, layouts.get(stream.name))
                before = self._tree.get(there) or ()
                self._tree.set(there, (*before, mapping))
        self.known = {} if self._streams else None

    def of(self, topic: str) -> tuple[TopicMapping, ...]:
        """Return the mappings of a topic: one for each stream that its messages feed."""
        known = self.known
        if known is None:
            return ()
        found = known.get(topic)
        if found is None:
            found = self._find(topic)
            if len(topic) <= _LONGEST_KNOWN:
                if len(known) >= _KNOWN_LIMIT:
                    known.clear()
                known[topic] = found
        return found

    def _find(self, topic: str) -> tuple[TopicMapping, ...]:
        if topic.startswith("$"):
            return ()
        first: dict[Target, TopicMapping] = {}
        for mapping in sorted(
            (mapping for mappings in self._tree.matching(topic) for mapping in mappings),
            key=lambda mapping: (mapping.target.topic, mapping.rank),
        ):
            first.setdefault(mapping.target, mapping)
        return tuple(first.values())


def _read_text(text: str, number: bool) -> str | int:  # noqa: FBT001
    return int(text) if number and _NUMBER.fullmatch(text) else text


def _write_object(fields: Mapping[str, Any]) -> bytes:
    """Write a JSON object; nothing where no log would take it, or where a number is endless."""
    try:
        made = json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return b""
    written = made.encode()
    return written if len(written) <= MAX_VALUE else b""


def _key(person: Any) -> bytes:
    """Write what names a person as a key; none where nothing does."""
    if isinstance(person, bool) or not isinstance(person, str | int):
        return b""
    key = str(person).encode("utf-8", "surrogatepass")
    return key if len(key) <= MAX_KEY else b""
