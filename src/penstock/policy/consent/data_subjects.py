"""Data subjects: whom a message is about, by the subject key of the streams that its topic feeds.

    topic ──▶ the patterns of streams with a subject (`from`) ──▶ keys, one for each stream, cached
    key, message ──▶ the name of the person, as the record of the message has it

Rules that hold here:
- A message is about the person that the field `subject` of its stream names. The field is filled
  by a level of the topic, by what the gateway adds (topic, publisher, a user property), else by
  the payload: in this order, as recording fills it.
- What cannot be told is None, never a guess: a missing field, another type than the stream
  declares, a payload that is no JSON object, a user property that stands twice.
- A topic may feed several streams: each tells of a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.model.document import Document, Key
from penstock.model.kinds import Stream
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.model.kinds.streams import AddedFields
from penstock.policy.access.objects import Message
from penstock.policy.filters.tree import FilterTree

_CACHE_LIMIT: Final = 65_536
_LONGEST: Final = 256
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_BOUNDS: Final[Mapping[str, int]] = {"int": 2**31, "long": 2**63}


class SubjectKey(NamedTuple):
    """Where the messages of a topic tell whom they are about, for one stream."""

    stream: str
    place: str
    """In words: `the topic`, `the payload's pid`."""
    fixed: str | None = None
    """What the topic tells."""
    publisher: bool = False
    user_property: str | None = None
    path: tuple[str, ...] = ()
    """The way into the payload."""
    type: str = "string"

    @property
    def in_payload(self) -> bool:
        """Whether two messages of one topic and one property list may be about two people."""
        return bool(self.path)

    def find(self, message: Message | None) -> str | None:
        """Return whom a message is about; None where it does not tell."""
        if self.fixed is not None or message is None:
            return self.fixed
        if message.data_subject is not None:
            return message.data_subject
        if self.path:
            value: Any = message.content
            for step in self.path:
                value = value.get(step) if isinstance(value, Mapping) else None
            return _write(value, self.type)
        if self.publisher:
            return message.user
        if self.user_property is not None:
            return _read(message.user_property(self.user_property), self.type)
        return None


class DataSubjects:
    """The subject keys of the streams in force."""

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._tree: FilterTree[tuple[tuple[Stream, int, str], ...]] = FilterTree()
        self._known: dict[str, tuple[SubjectKey, ...]] = {}

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = [key for key in changed if key.kind == Stream.kind]
        for key in keys:
            self._streams.pop(key.name, None)
        held = (documents[key] for key in keys if key in documents)
        if keys:
            self.put(Stream.model_validate({"name": it.name, **it.body}) for it in held)

    def put(self, streams: Iterable[Stream]) -> None:
        """Take over streams, each in the place of the one that has its name."""
        self._streams |= {it.name: it for it in streams if it.patterns and it.subject is not None}
        self._tree.clear()
        self._known.clear()
        for _, stream in sorted(self._streams.items()):
            for rank, pattern in enumerate(stream.patterns):
                there = plain_filter(pattern)
                before = self._tree.get(there) or ()
                self._tree.set(there, (*before, (stream, rank, pattern)))

    def of(self, topic: str) -> tuple[SubjectKey, ...]:
        """Return where messages of a topic tell whom they are about; none: nowhere."""
        if not self._streams:
            return ()
        known = self._known.get(topic)
        if known is None:
            known = self._find(topic)
            if len(topic) <= _LONGEST:
                if len(self._known) >= _CACHE_LIMIT:
                    self._known.clear()
                self._known[topic] = known
        return known

    def _find(self, topic: str) -> tuple[SubjectKey, ...]:
        if topic.startswith("$"):
            return ()
        first: dict[str, SubjectKey] = {}
        found = (it for held in self._tree.matching(topic) for it in held)
        # A message is recorded once in a stream, by the first of its patterns that fits.
        for stream, _, pattern in sorted(found, key=lambda it: (it[0].name, it[1])):
            if stream.name not in first:
                first[stream.name] = _make_key(stream, pattern, topic)
        return tuple(first.values())


def _make_key(stream: Stream, pattern: str, topic: str) -> SubjectKey:
    name = stream.subject or ""
    kind = next(it.type for it in stream.fields if it.name == name)
    levels = {level: place for place, level in named_levels(pattern).items()}
    if name in levels:
        told = _read(topic.split("/")[levels[name]], kind)
        return SubjectKey(stream.name, f"the topic's level {name}", fixed=told)
    if stream.adds is not None:
        added = _find_added(stream.name, stream.adds, name, topic)
        if added is not None:
            return added._replace(type=kind)
    if any(name in named_levels(it).values() for it in stream.patterns):
        # Another pattern fills it: by this one nobody does, whatever the payload says.
        return SubjectKey(stream.name, f"the topic's level {name}, which this topic has not")
    if stream.format == "avro":
        return SubjectKey(stream.name, "an Avro payload, which gateways do not read")
    path = ("payload", name) if stream.format == "connect" else (name,)
    return SubjectKey(stream.name, f"the payload's {'.'.join(path)}", path=path, type=kind)


def _find_added(stream: str, adds: AddedFields, name: str, topic: str) -> SubjectKey | None:
    """Return the key of a field that the gateway adds."""
    if name == adds.topic:
        return SubjectKey(stream, "the topic", fixed=topic)
    if name == adds.publisher:
        return SubjectKey(stream, "the publisher", publisher=True)
    told = adds.properties.get(name)
    if told is None:
        return None
    return SubjectKey(stream, f"the user property {told}", user_property=told)


def _read(text: str | None, kind: str) -> str | None:
    """Return a text of the topic or of a property as records write it."""
    if text is None or kind not in _BOUNDS:
        return text
    return _write(int(text), kind) if _NUMBER.fullmatch(text) else None


def _write(value: Any, kind: str) -> str | None:
    """Return a value as text, if it is one of the type."""
    if kind == "string":
        return value if type(value) is str else None
    bound = _BOUNDS.get(kind)
    if bound is None or type(value) is not int:
        return None
    return str(value) if -bound <= value < bound else None
