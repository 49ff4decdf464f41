"""Consent in decisions: whom a message is about, and which purposes that person opted out of.

    topic ──▶ the patterns of streams with a subject (`from`) ──▶ keys, one for each stream, cached
    key, message ──▶ the name of the person, as the record of the message has it

    topic, purpose ──▶ concerns? ──no──▶ nothing to say: free
                          │yes
    message ──▶ data subjects ──▶ their numbers ──▶ opted out of a related purpose? ──▶ denied
                   └── cannot be told ──▶ denied

Rules that hold here:
- A message is about the person that the field `subject` of its stream names. The field is filled
  by a level of the topic, by what the gateway adds (topic, publisher, a user property), else by
  the payload: in this order, as recording fills it.
- What cannot be told is None, never a guess: a missing field, another type than the stream
  declares, a payload that is not a JSON object, a user property that stands twice.
- A topic may feed several streams: each tells of a person.
- An opt-out acts as a prohibition that every message about the person carries for itself: a
  subscription for a related purpose does not get it, and neither does one without a purpose.
- Related is the purpose itself, what is below it, and what it is a part of.
- Fail closed: where somebody opted out of a related purpose and a message does not tell whom it
  is about, or the key that marks people is not known, it is denied.
- An event is detected whatever people opted out of, unless its definition says what it is
  detected for: no opt-out of marketing turns an emergency off.
- `asked` are the numbers that decisions were made by which others may keep. A change of opt-outs
  that touches none of them, and no purpose for the first or last time, changes none of those.
- An index is never changed: an update makes another one, which shares what is the same. Whoever
  reads one does so without a lock.
- A number counts as often as people who share it have opted out: an opt-in of one takes
  nothing back for another.
- A million opt-outs take eight megabytes; a question takes a search by halves, and nothing
  at all where nobody opted out of a related purpose.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.model.document import Document, Key
from penstock.model.kinds import Event, Stream
from penstock.model.kinds.fields import named_levels, plain_filter
from penstock.model.kinds.streams import AddedFields
from penstock.model.purposes import is_related
from penstock.policy.access.requests import Message
from penstock.policy.filter_tree import FilterTree

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


FOLD: Final = 1_024
"""How many changes an index holds beside its sorted numbers."""
MERGE: Final = 64
"""From what share of its numbers on an index is sorted anew."""
_REFUSING_LIMIT: Final = 4_096

NumberOf = Callable[[str], int]
"""Gives the number that stands for a person; raises where nobody can be called so."""


class OptedOutNumbers:
    """The numbers of people who opted out of one purpose."""

    __slots__ = ("_count", "_delta", "_sorted")

    def __init__(self, numbers: array[int] | None = None) -> None:
        self._sorted = array("q") if numbers is None else numbers
        self._delta: Mapping[int, int] = {}
        self._count = len(self._sorted)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        held = self._sorted
        at = bisect_left(held, number)
        found = at < len(held) and held[at] == number
        if not self._delta:
            return found
        more = self._delta.get(number, 0)
        return found if not more else self._count_sorted(number) + more > 0

    def change(self, counts: Mapping[int, int]) -> OptedOutNumbers:
        """Return the numbers where each of these counts so often more, or less."""
        delta = dict(self._delta)
        for number, more in counts.items():
            delta[number] = delta.get(number, 0) + more
        delta = {number: more for number, more in delta.items() if more}
        made = OptedOutNumbers(self._sorted)
        if len(delta) > FOLD:
            made._sorted = self._fold(delta)
        else:
            made._delta = delta
        made._count = self._count + sum(counts.values())
        return made

    def _count_sorted(self, number: int) -> int:
        at = bisect_left(self._sorted, number)
        return bisect_right(self._sorted, number, at) - at

    def _fold(self, delta: Mapping[int, int]) -> array[int]:
        """Merge changes into a new sorted array: whole stretches are copied at once."""
        held, folded, done = self._sorted, array("q"), 0
        if len(delta) * MERGE > len(held) and all(more == 1 for more in delta.values()):
            # Two sorted stretches, which sorting merges: how a gateway reads all there is.
            merged = held.tolist()
            merged.extend(sorted(delta))
            merged.sort()
            return array("q", merged)
        for number in sorted(delta):
            start = bisect_left(held, number, done)
            end = bisect_right(held, number, start)
            folded.extend(held[done:start])
            folded.extend([number] * (end - start + delta[number]))
            done = end
        folded.extend(held[done:])
        return folded


class OptOutIndex:
    """All opt-outs of an epoch."""

    __slots__ = ("_refusing", "by_purpose", "epoch", "number_of")

    def __init__(
        self,
        epoch: int = 0,
        by_purpose: Mapping[str, OptedOutNumbers] | None = None,
        number_of: NumberOf | None = None,
    ) -> None:
        self.epoch = epoch
        self.by_purpose: Mapping[str, OptedOutNumbers] = {
            purpose: who for purpose, who in (by_purpose or {}).items() if who
        }
        """Purposes that somebody opted out of."""
        self.number_of = number_of
        """None where the key that marks people is not known: nobody can be found then."""
        self._refusing: dict[str | None, tuple[OptedOutNumbers, ...]] = {}

    def change(
        self,
        epoch: int,
        changes: Mapping[str, Mapping[int, int]],
        number_of: NumberOf | None,
    ) -> OptOutIndex:
        """Return the index after changes: how often more each number counts, by purpose."""
        now = dict(self.by_purpose)
        for purpose, counts in changes.items():
            now[purpose] = now.get(purpose, OptedOutNumbers()).change(counts)
        return OptOutIndex(epoch, now, number_of)

    def refusing(self, purpose: str | None) -> tuple[OptedOutNumbers, ...]:
        """Return who opted out of a purpose, of one above or below it; None: of any purpose."""
        known = self._refusing.get(purpose)
        if known is None:
            if len(self._refusing) >= _REFUSING_LIMIT:
                self._refusing.clear()
            known = self._refusing[purpose] = tuple(
                who
                for refused, who in self.by_purpose.items()
                if purpose is None or is_related(refused, purpose)
            )
        return known


NOBODY: Final = OptOutIndex()


OPT_OUT: Final = "opt-out"
"""The rule by which a person's choice denies."""
UNKNOWN_SUBJECT: Final = "unknown data subject"
UNKNOWN_KEY: Final = "unknown consent key"
DENYING: Final = frozenset({OPT_OUT, UNKNOWN_SUBJECT, UNKNOWN_KEY})
_NONE: Final = -1
"""The number of a text that nobody can be called by."""


class Finding(NamedTuple):
    """What consent says of a message that it concerns."""

    rule: str
    """What denies; empty: nothing does."""
    reason: str
    lasting: bool
    """Whether it holds for every message of this topic and property list."""


class Prohibitions:
    """The opt-outs of an epoch, and how messages tell whom they are about."""

    __slots__ = ("_events", "_numbers", "asked", "opt_outs", "subjects")
    kinds = frozenset({Stream.kind, Event.kind})
    """What they follow."""

    def __init__(
        self, subjects: DataSubjects | None = None, opt_outs: OptOutIndex = NOBODY
    ) -> None:
        self.subjects = subjects or DataSubjects()
        self.opt_outs = opt_outs
        self.asked: set[int] | None = set()
        """None: too many to tell."""
        self._events: dict[str, tuple[str, ...]] = {}
        self._numbers: dict[str, int] = {}

    def take_definitions(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        keys = list(changed)
        self.subjects.take(documents, keys)
        for key in keys:
            if key.kind == Event.kind:
                body = documents[key].body if key in documents else {}
                self._events[key.name] = tuple(body.get("purposes", ()))

    def forbid_event(self, event: str, topic: str, message: Message | None) -> bool:
        """Say whether a message must not bring about an event, for whom it is about."""
        found = (self.examine(topic, it, message) for it in self._events.get(event, ()))
        return any(it is not None and it.rule for it in found)

    def take(self, opt_outs: OptOutIndex, changed: Collection[int] | None) -> bool:
        """Take over other opt-outs; say whether decisions that were kept may be wrong now.

        `changed` are the numbers of people who chose since; None: it may be anybody.
        """
        held, self.opt_outs = self.opt_outs, opt_outs
        if held.number_of is not opt_outs.number_of:
            self._numbers.clear()
        elif (
            changed is not None
            and self.asked is not None
            and held.by_purpose.keys() == opt_outs.by_purpose.keys()
            and self.asked.isdisjoint(changed)
        ):
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Take note that no decision is kept any more."""
        self.asked = set()

    def concern(self, topic: str) -> bool:
        """Say whether messages of a topic may be denied by somebody's choice."""
        return bool(self.opt_outs.by_purpose) and bool(self.subjects.of(topic))

    def examine(self, topic: str, purpose: str | None, message: Message | None) -> Finding | None:
        """Say what consent has to say of a message; None: nothing, whoever it is about."""
        opt_outs = self.opt_outs
        if not opt_outs.by_purpose:
            return None
        keys = self.subjects.of(topic)
        refusing = opt_outs.refusing(purpose) if keys else ()
        if not refusing:
            return None
        lasting = not any(key.in_payload for key in keys)
        if opt_outs.number_of is None:
            why = "people opted out, and the key that they are marked with is not known here"
            return Finding(UNKNOWN_KEY, why, lasting=True)
        for key in keys:
            denied = self._examine(key, refusing, message, lasting=lasting)
            if denied is not None:
                return denied
        return Finding("", "the data subject has not opted out of it", lasting)

    def _examine(
        self,
        key: SubjectKey,
        refusing: tuple[OptedOutNumbers, ...],
        message: Message | None,
        *,
        lasting: bool,
    ) -> Finding | None:
        name = key.find(message)
        number = _NONE if name is None else self._number(name)
        if number == _NONE:
            why = f"people opted out, and {key.place} does not tell whom the message is about"
            return Finding(UNKNOWN_SUBJECT, why, lasting)
        if lasting and self.asked is not None:
            self.asked.add(number)
            if len(self.asked) > _CACHE_LIMIT:
                self.asked = None
        if any(number in who for who in refusing):
            return Finding(OPT_OUT, "the data subject opted out of it", lasting)
        return None

    def _number(self, name: str) -> int:
        known = self._numbers.get(name)
        if known is None:
            make = self.opt_outs.number_of
            try:
                known = _NONE if make is None else make(name)
            except PenstockError:
                known = _NONE
            if len(name) <= _LONGEST:
                if len(self._numbers) >= _CACHE_LIMIT:
                    self._numbers.clear()
                self._numbers[name] = known
        return known
