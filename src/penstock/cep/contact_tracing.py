"""Operator nodes of contact tracing: visits, meetings and their daily sums.

Rules that hold here:
- Samples raise no events. A request raises the stays of its subject, and the meetings during
  them, where something downstream depends on them: a plan, an operator with state, or an action
  of this request. Without that the lookup is skipped: its cost grows with the contacts of a case.
- How long one person was with another on one day (`DailySums`) is kept without them. Where
  nothing but those sums is needed, neither stays nor meetings are raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from penstock.cep.context import FIELD_OF_ROOT, EngineContext, ErasedPeople, Row, Values
from penstock.cep.operators import NO_ROWS, AggregateOutput, Detections, Feed, OperatorNode, Rows
from penstock.cep.presence import Presence
from penstock.cep.program import Aggregate, Meetings, Operator, Refine, Visits
from penstock.lang.tree import Node as Tree
from penstock.lang.tree import find_path

SAMPLES = 0
"""The input that brings samples; the other brings requests."""


@dataclass(frozen=True, slots=True)
class Interest:
    """Who waits for what is made of stays."""

    awaited: bool = False
    """Whether somebody waits with every request."""
    answers: frozenset[str] = frozenset()
    """The event types that are made of it: actions may wait for them."""

    def has(self, wanted: frozenset[str]) -> bool:
        """Tell whether anybody does, where actions want some event types."""
        return self.awaited or not self.answers.isdisjoint(wanted)


class VisitsNode(OperatorNode):
    """Keeps stays, and raises those that a request asks for."""

    def __init__(self, index: int, context: EngineContext, spec: Visits) -> None:
        super().__init__(index, context)
        self.who = spec.who
        self.place = spec.place
        self.presence = Presence(
            spec.every, spec.within, context.limits.stays, context.limits.pairs, spec.zone
        )
        self.interest = Interest(awaited=True)
        """Who waits for stays, and for what is made of them by looking at each."""
        self.sums: list[DailySumsNode] = []
        self.requested: frozenset[str] = frozenset()
        """The event types that the actions of the present request need."""

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Take samples and answer requests."""
        inbox, self.inbox = self.inbox, []
        who, place = self.who, self.place
        add = self.presence.add
        asked: Rows = []
        for slot, added, _, again in inbox:
            if slot == SAMPLES:
                for row in added:
                    values = row.values
                    add(values[who], values[place], row.at)
            else:
                asked += [*added, *again]
        if self.presence.dropped:
            self.context.counts["dropped_days"] += self.presence.dropped
            self.presence.dropped = 0
        if not asked:
            return
        for node in self.sums:
            if node.interest.has(self.requested):
                node.inbox.append((0, asked, NO_ROWS, NO_ROWS))
        if self.interest.has(self.requested):
            rows = [row for it in asked for row in self._rows(it.values[who], it.at)]
            if rows:
                self.emit(detected, rows, NO_ROWS, NO_ROWS)

    @override
    def feeder(self, slot: int) -> Feed:
        if slot != SAMPLES:
            return super().feeder(slot)
        who, place, presence = self.who, self.place, self.presence

        def feed(row: Row, detected: Detections, quiet: Detections) -> bool:  # noqa: ARG001
            values = row.values
            presence.add(values[who], values[place], row.at)
            return False

        return feed

    def _rows(self, person: str, at: int) -> list[Row]:
        presence = self.presence
        return [
            self.context.row(
                at,
                {
                    self.who: person,
                    self.place: stay.place,
                    "time": presence.time_of(stay.first),
                    "date": presence.date_of(stay.first),
                    "duration": (stay.last - stay.first + 1) * presence.every / 1000,
                    "at": at,
                },
            )
            for stay in presence.visits(person, self.context.now)
        ]

    @override
    def forget(self, people: ErasedPeople) -> None:
        for name in people.names:
            people.found[name] += self.presence.forget(name)

    def save(self) -> Any:
        """Return all stays."""
        return self.presence.save()

    def load(self, state: Any) -> None:
        """Take the stays back."""
        self.presence.load(state)


class MeetingsNode(OperatorNode):
    """Raises the meetings of those whose visits a request brought."""

    def __init__(self, index: int, context: EngineContext, visits: VisitsNode) -> None:
        super().__init__(index, context)
        self._visits = visits

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Find whom the visitors of this step met."""
        inbox, self.inbox = self.inbox, []
        visits, presence = self._visits, self._visits.presence
        asked: dict[tuple[str, int], None] = {}
        for _, added, _, _ in inbox:
            for row in added:
                asked[row.values[visits.who], row.at] = None
        rows = [
            self.context.row(
                at,
                {
                    visits.who: person,
                    "other": meeting.other,
                    visits.place: meeting.place,
                    "time": presence.time_of(meeting.first),
                    "date": presence.date_of(meeting.first),
                    "duration": meeting.ticks * presence.every / 1000,
                    "at": at,
                },
            )
            for person, at in asked
            for meeting in presence.meetings(person, self.context.now)
        ]
        self.emit(detected, rows, NO_ROWS, NO_ROWS)


@dataclass(frozen=True, slots=True)
class DailySums:
    """How the attributes of a sum are called: of whom, with whom, which day, as of when."""

    visits: int
    who: str
    other: str
    date: str
    at: str
    sums: tuple[str, ...]
    order: tuple[str, ...]


class DailySumsNode(OperatorNode):
    """Raises how long the person of a request was with each other one, day by day."""

    def __init__(
        self,
        index: int,
        context: EngineContext,
        spec: DailySums,
        visits: VisitsNode,
        outputs: Sequence[AggregateOutput],
    ) -> None:
        super().__init__(index, context)
        self._spec = spec
        self._visits = visits
        self._outputs = outputs
        self.interest = Interest(awaited=True)

    def run(self, detected: list[tuple[str, Row]]) -> None:
        """Sum up the contacts of those whom the requests of this step are about."""
        inbox, self.inbox = self.inbox, []
        who = self._visits.who
        asked = {(row.values[who], row.at): None for _, rows, _, _ in inbox for row in rows}
        sums = [it for person, at in asked for it in self._sums(person, at)]
        now, make = self.context.now, self.context.row
        for output in self._outputs:
            where, shape = output.where, output.shape
            held = sums if where is None else [it for it in sums if where(it) is True]
            shaped = held if shape is None else map(shape, held)
            output.emit(detected, [make(now, values) for values in shaped], NO_ROWS, NO_ROWS)

    def _sums(self, person: str, at: int) -> Iterator[Values]:
        spec, presence = self._spec, self._visits.presence
        blank: Values = dict.fromkeys(spec.order)
        blank |= {spec.who: person, spec.at: at}
        other, seconds = spec.other, presence.every / 1000
        for first, contacts in presence.contacts(person, self.context.now):
            blank[spec.date] = presence.date_of(first)
            for name, ticks in contacts:
                values = blank.copy()
                values[other] = name
                for it in spec.sums:
                    values[it] = ticks * seconds
                yield values


def find_daily_sums(index: int, operators: Sequence[Operator]) -> DailySums | None:
    """Return what an operator sums up, if it is the meetings of each day with each person.

    Sums of whole seconds only: others would not be the sum of rounded parts.
    """
    spec = operators[index]
    if not isinstance(spec, Aggregate) or spec.window.kind != "step" or len(spec.inputs) != 1:
        return None
    source = operators[spec.inputs[0]]
    names = {name: name for name, _ in source.attributes.fields}
    while isinstance(source, Refine) and source.where is None:
        if source.assignments is not None:
            plain = {it.name: _attribute(it.value.tree) for it in source.assignments}
            names = {name: plain.get(it, "") for name, it in names.items()}
        source = operators[source.inputs[0]]
    if not isinstance(source, Meetings):
        return None
    visits = operators[source.inputs[0]]
    if not isinstance(visits, Visits) or visits.every % 1000:
        return None
    keys = {names.get(name, ""): name for name in spec.by}
    wanted = (visits.who, "other", "date", "at")
    if set(keys) != set(wanted) or len(spec.by) != len(wanted) or not spec.values:
        return None
    for value in spec.values:
        argument = "" if value.argument is None else _attribute(value.argument.tree)
        if value.function != "sum" or names.get(argument) != "duration":
            return None
    sums = tuple(value.name for value in spec.values)
    who, other, date, at = (keys[it] for it in wanted)
    return DailySums(source.inputs[0], who, other, date, at, sums, (*spec.by, *sums))


def _attribute(tree: Tree) -> str:
    """Return the attribute that an expression is; none where it is more than that."""
    path = find_path(tree)
    return path[1] if path is not None and len(path) == FIELD_OF_ROOT else ""
