"""Binding: which topics may carry events, which primitive events a packet is, and what they say.

Rules that hold here:
- The work follows the levels of the topic, not the number of types; topics that were
  looked up are cached, up to a limit.
- A filter that begins with a wildcard does not match a topic that begins with `$` (MQTT5 4.7.2).
- A topic is watched if a message on it could be an event. What depends on more than the topic
  counts as possible.
- A packet is an event of every type whose criterion it satisfies, and of no other.
- A criterion that is missing is not satisfied. An event that lacks an attribute that is
  not optional does not come about; it is counted.
- A criterion over the topic alone is answered once for each topic.
- Times are the gateway's: where its clock is ahead of everybody's, so are the times that
  events tell of themselves.
- Nothing here changes anything: binding is what a packet may do before it is authorised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar

from penstock.cep.context import EngineContext, Values
from penstock.cep.operators import Feed, OperatorNode, SourceNode
from penstock.cep.program import Assignment, PacketEvents, Program, RequestEvents
from penstock.lang import BOOL, DOUBLE, INT, STRING, TIMESTAMP, Type
from penstock.lang.scalars import EPOCH, MICROSECOND
from penstock.lang.tree import find_path

_CACHED_TOPICS: Final = 50_000
_NOTHING: Final[dict[str, Any]] = {}

V = TypeVar("V")


class _Branch(Generic[V]):
    __slots__ = ("all_below", "below", "here")

    def __init__(self) -> None:
        self.below: dict[str, _Branch[V]] = {}
        self.here: list[V] = []
        self.all_below: list[V] = []


class TopicIndex(Generic[V]):
    """Values by topic filter, found by topic in the order in which they were added."""

    def __init__(self) -> None:
        self._root: _Branch[V] = _Branch()
        self._order: dict[V, int] = {}

    def add(self, filter_: str, value: V) -> None:
        """Add a value under a filter."""
        self._order.setdefault(value, len(self._order))
        branch = self._root
        for level in filter_.split("/"):
            if level == "#":
                branch.all_below.append(value)
                return
            branch = branch.below.setdefault(level, _Branch())
        branch.here.append(value)

    def find(self, topic: str) -> list[V]:
        """Return the values whose filters match a topic, each once."""
        found: dict[V, None] = {}
        levels = topic.split("/")
        branches = [self._root]
        for place, level in enumerate(levels):
            wild = place > 0 or not level.startswith("$")
            following = []
            for branch in branches:
                if wild:
                    found.update(dict.fromkeys(branch.all_below))
                names = (level, "+") if wild else (level,)
                following += [branch.below[name] for name in names if name in branch.below]
            branches = following
        for branch in branches:
            found.update(dict.fromkeys(branch.here))
            found.update(dict.fromkeys(branch.all_below))
        return sorted(found, key=self._order.__getitem__)


class WatchedTopics:
    """The topics that are watched for the events of one program."""

    def __init__(self, program: Program) -> None:
        self._index: TopicIndex[int] = TopicIndex()
        self._kinds: list[PacketEvents] = []
        self._known: dict[str, bool] = {}
        for index in sorted(set(program.types.values())):
            kind = program.operators[index]
            if isinstance(kind, PacketEvents):
                for filter_ in kind.filters:
                    self._index.add(filter_, len(self._kinds))
                self._kinds.append(kind)

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def matches(self, topic: str) -> bool:
        """Say whether a message on a topic could be an event."""
        if not self._kinds:
            return False
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= _CACHED_TOPICS:
                self._known.clear()
            known = self._known[topic] = any(
                _could_be(self._kinds[place], topic) for place in self._index.find(topic)
            )
        return known


def _could_be(kind: PacketEvents, topic: str) -> bool:
    if not kind.when.references <= {"t.topic"}:
        return True
    return kind.when.function(_NOTHING, _NOTHING, _NOTHING, {"topic": topic}) is True


_EMPTY: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Packet:
    """A message that is being published: its topic, and what expressions see of it.

    `id` identifies a duplicate, where the publisher or the protocol gives one. `depth`
    counts the actions that led to it: 0 for a client's packet. `ahead` is by how much the
    gateway's clock is ahead of the clients' one, in milliseconds.
    """

    topic: str
    t: Mapping[str, Any]
    s: Mapping[str, Any] = field(default_factory=dict)
    o: Mapping[str, Any] = field(default_factory=dict)
    e: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    depth: int = 0
    ahead: int = 0


class PrimitiveType:
    """A primitive event type at work."""

    __slots__ = (
        "ahead",
        "drives",
        "feeders",
        "follows_topic",
        "id",
        "lateness",
        "name",
        "node",
        "reach",
        "time",
        "values_of",
        "when",
    )

    def __init__(self, name: str, spec: PacketEvents, node: SourceNode) -> None:
        self.name = name
        self.node = node
        self.reach: tuple[OperatorNode, ...] = ()
        self.when = spec.when.function
        self.follows_topic = spec.when.references <= {"t.topic"}
        self.lateness = spec.lateness
        self.ahead = spec.ahead
        self.time = None if spec.time is None else spec.time.function
        self.id = None if spec.id is None else spec.id.function
        self.feeders: tuple[Feed, ...] = ()
        """What takes its rows one by one; where there is none, the wave brings them."""
        self.drives = False
        """Whether some plan waits for its events."""
        self.values_of = make_reader(spec.assignments, spec.optional, "soet")
        """Takes s, o, e and t; returns what the event says, or None where something lacks."""

    def happened(self, packet: Packet) -> int | None:
        """Return when the event happened by its own account, in milliseconds."""
        if self.time is None:
            return None
        e, ahead = packet.e, packet.ahead
        if ahead and "time" in e:
            # What is told may be reckoned from now: that, too, by the clock of clients.
            e = {**e, "time": e["time"] - timedelta(milliseconds=ahead)}
        value = self.time(packet.s, packet.o, e, packet.t)
        if isinstance(value, datetime):
            return (value - EPOCH) // MICROSECOND // 1000 + ahead
        return value + ahead if isinstance(value, int) else None


BoundEvent: TypeAlias = tuple[PrimitiveType, Values, int | None, str | None]
"""An event that a packet is: its type, values, own time and own identifier."""

INCOMPLETE: Final = ""
"""Stands where the identifier of an event would: it lacks something."""


class EventBinder:
    """All primitive event types that packets can be bound to."""

    def __init__(self, context: EngineContext) -> None:
        self._index: TopicIndex[PrimitiveType] = TopicIndex()
        self._known: dict[str, tuple[PrimitiveType, ...]] = {}
        self._limit = context.limits.topics
        self.types: dict[str, PrimitiveType] = {}

    def add(self, filter_: str, bound: PrimitiveType) -> None:
        """Look at packets of these topics for a type."""
        self._index.add(filter_, bound)

    def find(self, topic: str) -> tuple[PrimitiveType, ...]:
        """Return the types that packets of a topic may be bound to."""
        found = self._known.get(topic)
        if found is None:
            message = {"topic": topic}
            found = tuple(
                bound
                for bound in self._index.find(topic)
                if not bound.follows_topic or bound.when(_EMPTY, _EMPTY, _EMPTY, message) is True
            )
            if len(self._known) >= self._limit:
                self._known.clear()
            self._known[topic] = found
        return found


class RequestType:
    """A type whose events evolutions bring about."""

    __slots__ = ("_read", "node")

    def __init__(self, spec: RequestEvents, node: SourceNode) -> None:
        self.node = node
        self._read = make_reader(spec.assignments, spec.optional, "soer")

    def values_of(self, packet: Packet | None, request: Mapping[str, Any]) -> Values | None:
        """Return what the event says; None where something is missing."""
        s, o, e = (_EMPTY, _EMPTY, _EMPTY) if packet is None else (packet.s, packet.o, packet.e)
        return self._read(s, o, e, request)


# What a value of a type usually is. Such a value is taken as it is; any other one is left to
# the expression, which knows what else counts.
_USUAL: Final[Mapping[Type, str]] = {
    BOOL: "{v} is True or {v} is False",
    INT: "type({v}) is int and -LARGE < {v} < LARGE",
    DOUBLE: "type({v}) is float and {v} - {v} == 0.0",
    STRING: "type({v}) is str and {v}.isascii()",
    TIMESTAMP: "type({v}) is datetime and {v}.tzinfo is UTC",
}
_NAMES: Final[Mapping[str, Any]] = {
    "__builtins__": {"type": type, "int": int, "float": float, "str": str, "dict": dict},
    "datetime": datetime,
    "UTC": UTC,
    "LARGE": 2**63,
}


def make_reader(
    assignments: Sequence[Assignment], optional: frozenset[str], roots: str
) -> Callable[..., Values | None]:
    """Return a function that makes an event's values, unrolled: it runs for every packet.

    Only our own words stand in its source; names and expressions are bound to them.
    """
    namespace = dict(_NAMES)
    numbers = range(len(assignments))
    parameters = ", ".join(roots)
    lines = [f"def read({parameters}):"]
    for number, assignment in enumerate(assignments):
        namespace[f"f{number}"] = assignment.value.function
        namespace[f"k{number}"] = assignment.name
        lines += _read_assignment(number, assignment, parameters, namespace)
    needed = [
        f"v{number} is None" for number in numbers if assignments[number].name not in optional
    ]
    if needed:
        lines.append(f" if {' or '.join(needed)}: return None")
    lines.append(" return {" + ", ".join(f"k{number}: v{number}" for number in numbers) + "}")
    exec(compile("\n".join(lines), "<event>", "exec"), namespace)  # noqa: S102 - see above
    reader: Callable[..., Values | None] = namespace["read"]
    return reader


def _read_assignment(
    number: int, assignment: Assignment, parameters: str, namespace: dict[str, Any]
) -> list[str]:
    """Return the lines that read one value; a plain path is followed on the spot."""
    path = find_path(assignment.value.tree)
    usual = _USUAL.get(assignment.value.type)
    if path is None or usual is None:
        return [f" v{number} = f{number}({parameters})"]
    value = f"v{number}"
    lines = [f" {value} = {path[0]}"]
    for place, name in enumerate(path[1:]):
        namespace[f"n{number}_{place}"] = name
        lines.append(
            f" {value} = {value}.get(n{number}_{place}) if type({value}) is dict else None"
        )
    lines.append(f" if not ({usual.format(v=value)}): {value} = f{number}({parameters})")
    return lines
