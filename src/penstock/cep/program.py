"""A program of the event algebra: its operators, a typed tree; event types, plans, scenarios.

    packet, request                  where events come from
    refine, union                    selection, projection, renaming; disjunction
    aggregate, latest, iterate       windows, groups, aggregates; iteration
    join                             conjunction and sequence, with negation
    visits, meetings                 who was where, and with whom, from samples

Rules that hold here:
- Operators refer to their inputs by index in a `Program`, in which inputs come first; a type's
  name leads to its operator.
- An operator's `text` says all that it does: two operators with the same text are one,
  and state that was saved under a text belongs to no other operator.
- A *stream* raises rows and forgets them. A *relation* also says when a row no longer
  holds; what is negated or joined without a window is a relation.
- Nothing here has state: one program serves any number of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.lang import Expression, RecordType

Function = Literal["count", "sum", "avg", "min", "max", "distinct", "first", "last"]


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attribute and what it is set to."""

    name: str
    value: Expression


@dataclass(frozen=True, slots=True)
class PacketEvents:
    """Events that are bound to packets; expressions see s, o, e and t."""

    text: str
    attributes: RecordType
    filters: tuple[str, ...]
    when: Expression
    assignments: tuple[Assignment, ...]
    optional: frozenset[str]
    time: Expression | None
    lateness: int
    ahead: int
    id: Expression | None
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestEvents:
    """Events that evolutions with actions bring about; expressions see s, o, e and r."""

    text: str
    attributes: RecordType
    assignments: tuple[Assignment, ...]
    optional: frozenset[str]
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Refine:
    """Keeps the rows where a condition holds, and reshapes them; expressions see the row.

    `each`: over an aggregate, whether every contributing event raises the row again.
    """

    text: str
    attributes: RecordType
    inputs: tuple[int]
    where: Expression | None
    assignments: tuple[Assignment, ...] | None
    each: bool = True


@dataclass(frozen=True, slots=True)
class Union:
    """The rows of all inputs."""

    text: str
    attributes: RecordType
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Which events count together: the last so long, one period, the last few, one step."""

    kind: Literal["last", "each", "count", "step", "all"]
    size: int = 0
    zone: str = "UTC"
    """Whose days periods of whole days are."""

    def __str__(self) -> str:
        """Return its part of an operator's text, which names saved state: it never changes."""
        zone = "" if self.zone == "UTC" else f", zone={self.zone!r}"
        return f"Window(kind={self.kind!r}, size={self.size}{zone})"


@dataclass(frozen=True, slots=True)
class AggregateValue:
    """One aggregate: a function of an expression over the rows of some of the inputs."""

    name: str
    function: Function
    slots: tuple[int, ...]
    argument: Expression | None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What the events of a window come to, for each group; a relation with a row for each."""

    text: str
    attributes: RecordType
    inputs: tuple[int, ...]
    by: tuple[str, ...]
    window: WindowSpec
    values: tuple[AggregateValue, ...]


@dataclass(frozen=True, slots=True)
class Latest:
    """For each group the row with the greatest value of an attribute; a relation."""

    text: str
    attributes: RecordType
    inputs: tuple[int]
    by: tuple[str, ...]
    order: str


@dataclass(frozen=True, slots=True)
class Iterate:
    """The last of so many events within a time, then counted anew."""

    text: str
    attributes: RecordType
    inputs: tuple[int]
    by: tuple[str, ...]
    times: int
    within: int


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One side of a join. `where` belongs to a negated side: which rows rule a match out.

    `window`: how long rows count, in milliseconds; None: while the relation holds them.
    """

    negated: bool
    window: int | None
    where: Expression | None


@dataclass(frozen=True, slots=True)
class Join:
    """Rows of all positive sides together, while no negated side has a matching row.

    `ordered`: a sequence; its sides follow each other within `within`.
    """

    text: str
    attributes: RecordType
    inputs: tuple[int, ...]
    sides: tuple[JoinInput, ...]
    by: tuple[str, ...]
    ordered: bool
    within: int
    where: Expression | None
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Visits:
    """Uninterrupted stays of whom a request is about; inputs: samples, requests."""

    text: str
    attributes: RecordType
    inputs: tuple[int, int]
    who: str
    place: str
    every: int
    within: int
    zone: str = "UTC"
    """Whose days visits are counted by."""


@dataclass(frozen=True, slots=True)
class Meetings:
    """Who else was where the visits were; its input is a `Visits`."""

    text: str
    attributes: RecordType
    inputs: tuple[int]


Operator: TypeAlias = (
    PacketEvents
    | RequestEvents
    | Refine
    | Union
    | Aggregate
    | Latest
    | Iterate
    | Join
    | Visits
    | Meetings
)


def is_relation(operator: Operator, operators: tuple[Operator, ...] | list[Operator]) -> bool:
    """Tell whether an operator says when its rows no longer hold."""
    match operator:
        case Aggregate(window=window):
            return window.kind != "step"
        case Latest():
            return True
        case Join(ordered=ordered):
            return not ordered
        case Refine(inputs=inputs) | Union(inputs=inputs):
            return all(is_relation(operators[index], operators) for index in inputs)
        case _:
            return False


@dataclass(frozen=True, slots=True)
class CompiledAction:
    """A message that is made of each event of a type; expressions see `it`."""

    name: str
    event: str
    topic: str
    payload: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class CompiledEvolution:
    """A step between situations; None is inactive."""

    event: str | None
    source: str | None
    target: str | None
    actions: tuple[str, ...] = ()
    priority: int = 0
    after: int | None = None
    """Without an event: after so many milliseconds in the source."""


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """How an emergency may develop."""

    name: str
    situations: Mapping[str, int]
    evolutions: tuple[CompiledEvolution, ...]

    def rank(self) -> dict[str, tuple[int, int]]:
        """Return the order of events of one moment: greatest priority, then as written."""
        ranks: dict[str, tuple[int, int]] = {}
        for index, evolution in enumerate(self.evolutions):
            if evolution.event is None:
                continue
            found = ranks.get(evolution.event)
            first = index if found is None else found[1]
            priority = -evolution.priority if found is None else min(found[0], -evolution.priority)
            ranks[evolution.event] = (priority, first)
        return ranks


@dataclass(frozen=True, slots=True)
class CompiledScenario:
    """A plan, and whom it is followed for: those listed, or involved; otherwise everyone."""

    name: str
    plan: str
    attribute: str
    subjects: frozenset[str] | None = None
    involves: Callable[[str], bool] | None = None

    def concerns(self, subject: str) -> bool:
        """Say whether it is followed for a subject."""
        if self.subjects is not None:
            return subject in self.subjects
        return self.involves is None or self.involves(subject)


@dataclass(frozen=True, slots=True)
class Program:
    """All that an engine carries out."""

    operators: tuple[Operator, ...] = ()
    types: Mapping[str, int] = field(default_factory=dict)
    actions: Mapping[str, CompiledAction] = field(default_factory=dict)
    plans: Mapping[str, CompiledPlan] = field(default_factory=dict)
    scenarios: Mapping[str, CompiledScenario] = field(default_factory=dict)

    def names(self) -> dict[int, tuple[str, ...]]:
        """Return the event types that each operator stands for."""
        found: dict[int, tuple[str, ...]] = {}
        for name, index in sorted(self.types.items()):
            found[index] = (*found.get(index, ()), name)
        return found

    def has_situation(self, scenario: str, subject: str, situation: str | None) -> bool:
        """Say whether a subject of a scenario can be in a situation."""
        found = self.scenarios.get(scenario)
        if found is None or not found.concerns(subject):
            return False
        return situation in self.plans[found.plan].situations
