"""Patterns of events, typed and compiled: from what a person wrote to operators.

Rules that hold here:
- All that is wrong with a pattern is told at once, with its place within the event; an
  operator exists only where nothing is.
- Operators with the same text are made once: types that look at the same windows share
  them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from penstock.cep.program import (
    Aggregate,
    Assignment,
    Iterate,
    Join,
    JoinInput,
    Latest,
    Meetings,
    Refine,
    Union,
    Visits,
    WindowSpec,
    is_relation,
)
from penstock.definitions.events.operators import (
    ORDERED,
    InvalidOperatorError,
    OperatorTable,
    PatternInput,
    compile_value,
)
from penstock.errors import quote
from penstock.lang import (
    BOOL,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    RecordType,
    Scalar,
    Scope,
    Type,
)
from penstock.lang.scalars import DAY, UNIVERSAL
from penstock.model.kinds.events import EventWindow, Pattern

IT: Final = "it"
QUARTER: Final = 900_000
"""Clocks of all time zones differ by a multiple of it."""


class PatternCompiler:
    """Makes operators of one event's pattern; `types` leads to the operators of others."""

    def __init__(
        self, table: OperatorTable, types: Mapping[str, int | None], zone: str = UNIVERSAL
    ) -> None:
        self._table = table
        self._types = types
        self._zone = zone

    def compile(self, pattern: Pattern, wanted: RecordType) -> int:
        """Return the operator of a whole pattern whose rows are as the event declares."""
        index = self._pattern(pattern, "pattern", wanted)
        made = dict(self._table.operators[index].attributes.fields)
        declared = dict(wanted.fields)
        for name in [*declared, *(name for name in made if name not in declared)]:
            if name not in made:
                message = f"the pattern does not set {quote(name)}"
                raise self._table.fault(f"attributes.{name}", message, "add it to set")
            if name not in declared:
                message = f"the pattern also has {quote(name)}"
                raise self._table.fault(
                    "attributes", message, f"declare it, or choose with set: {{{name}: …}}"
                )
            if made[name] != declared[name]:
                raise self._table.fault(
                    f"attributes.{name}", f"declared {declared[name]}, but it is {made[name]}"
                )
        return index

    def _pattern(self, pattern: Pattern, place: str, wanted: RecordType | None = None) -> int:
        match pattern.operator:
            case "and" | "sequence":
                return self._join(pattern, place, wanted)
            case "not":
                raise self._table.fault(
                    place, "not stands alone", "write it within and, or within a sequence"
                )
            case "event":
                index = self._event(str(pattern.event))
            case "or":
                index = self._union(pattern, place)
            case "iterate":
                index = self._iterate(pattern, place)
            case "aggregate":
                index = self._aggregate(pattern, place)
            case "latest":
                index = self._latest(pattern, place)
            case "visits":
                index = self._visits(pattern, place)
            case _:
                index = self._meetings(pattern, place)
        return self._refine(pattern, place, index, wanted)

    def _event(self, name: str) -> int:
        index = self._types.get(name)
        if index is None:
            raise InvalidOperatorError  # it is missing or faulty itself, which is told there
        return index

    def _record(self, index: int) -> RecordType:
        return self._table.operators[index].attributes

    def _refine(self, pattern: Pattern, place: str, index: int, wanted: RecordType | None) -> int:
        each = pattern.raised == "each"
        if pattern.where is None and pattern.set is None and each:
            return index
        record = self._record(index)
        scope = Scope(((pattern.alias or IT, record),))
        where = (
            None
            if pattern.where is None
            else self._table.compile(pattern.where, scope, f"{place}.where", BOOL)
        )
        assignments = (
            None
            if pattern.set is None
            else self._assignments(pattern.set, scope, f"{place}.set", wanted)
        )
        text = self._table.text(
            "refine", [index], pattern.alias, pattern.where, pattern.set, pattern.raised,
            *(() if assignments is None else [_shape(assignments)]),
        )  # fmt: skip
        shape = record if assignments is None else _shape(assignments)
        return self._table.add(Refine(text, shape, (index,), where, assignments, each))

    def _assignments(
        self, texts: Mapping[str, str], scope: Scope, place: str, wanted: RecordType | None
    ) -> tuple[Assignment, ...]:
        made = []
        faulty = False
        for name, text in texts.items():
            expected = None if wanted is None else wanted.field(name)
            try:
                made.append(
                    Assignment(name, self._table.compile(text, scope, f"{place}.{name}", expected))
                )
            except InvalidOperatorError:
                faulty = True
        if faulty:
            raise InvalidOperatorError
        return tuple(made)

    def _inputs(
        self, patterns: Iterable[Pattern], place: str, *, named: bool = True
    ) -> list[PatternInput]:
        """Compile the inputs of an operator, all of them, so that all faults are found."""
        made: list[PatternInput] = []
        faulty = False
        for number, pattern in enumerate(patterns):
            inner = pattern if pattern.negated is None else pattern.negated
            alias = pattern.alias or inner.alias or IT
            here = f"{place}[{number}]"
            try:
                at = here if inner is pattern else f"{here}.not"
                index = self._pattern(inner, at)
            except InvalidOperatorError:
                faulty = True
                continue
            if named and any(other.alias == alias for other in made):
                self._table.fault(here, f"two inputs are called {quote(alias)}", "name one with as")
                faulty = True
            made.append(PatternInput(index, self._record(index), alias, pattern, here))
        if faulty:
            raise InvalidOperatorError
        return made

    def _check_by(self, by: tuple[str, ...], inputs: Iterable[PatternInput], place: str) -> None:
        first: dict[str, Type] = {}
        for item in inputs:
            for name in by:
                kind = item.record.field(name)
                if kind is None or not isinstance(kind, Scalar):
                    message = f"{item.alias} has no plain attribute {quote(name)}"
                    raise self._table.fault(f"{place}.by", message)
                if first.setdefault(name, kind) != kind:
                    message = f"{quote(name)} is {first[name]} here and {kind} there"
                    raise self._table.fault(f"{place}.by", message, "give both one type")

    def _union(self, pattern: Pattern, place: str) -> int:
        inputs = self._inputs(pattern.any_of or (), f"{place}.or", named=False)
        record = inputs[0].record
        for item in inputs[1:]:
            if dict(item.record.fields) != dict(record.fields):
                message = f"has {item.record}, but the first has {record}"
                raise self._table.fault(item.place, message, "let set give all the same attributes")
        indexes = tuple(item.index for item in inputs)
        return self._table.add(Union(self._table.text("or", indexes), record, indexes))

    def _join(self, pattern: Pattern, place: str, wanted: RecordType | None) -> int:
        ordered = pattern.sequence is not None
        place_of_inputs = f"{place}.{pattern.operator}"
        inputs = self._inputs(pattern.sequence or pattern.all_of or (), place_of_inputs)
        if ordered and pattern.within is None:
            raise self._table.fault(place, "a sequence has no end", "add within, such as 10m")
        positive = [item for item in inputs if item.pattern.negated is None]
        if not positive:
            raise self._table.fault(place_of_inputs, "all is negated", "add what should happen")
        if ordered and any(
            one.pattern.negated is not None and other.pattern.negated is not None
            for one, other in pairwise(inputs)
        ):
            message = "two negated inputs stand side by side"
            raise self._table.fault(place_of_inputs, message, "join them with or")
        self._check_by(pattern.by, inputs, place)
        scope = Scope(tuple((item.alias, item.record) for item in positive))
        sides = tuple([self._side(item, scope, pattern) for item in inputs])
        where = (
            None
            if pattern.where is None
            else self._table.compile(pattern.where, scope, f"{place}.where", BOOL)
        )
        given = pattern.set or {name: f"{positive[0].alias}.{name}" for name in pattern.by}
        assignments = self._assignments(given, scope, f"{place}.set", wanted)
        indexes = tuple(item.index for item in inputs)
        within = pattern.within or 0
        text = self._table.text(
            pattern.operator, indexes, pattern.by, within, pattern.where, given,
            _shape(assignments),
            [(it.alias, side.negated, side.window, it.pattern.negated and it.pattern.where)
             for it, side in zip(inputs, sides, strict=True)],
        )  # fmt: skip
        return self._table.add(
            Join(
                text,
                _shape(assignments),
                indexes,
                sides,
                pattern.by,
                ordered,
                within,
                where,
                assignments,
            )
        )

    def _side(self, item: PatternInput, scope: Scope, pattern: Pattern) -> JoinInput:
        negated = item.pattern.negated
        window = (negated or item.pattern).window
        size = None if window is None else window.last
        if window is not None and size is None:
            message = "rows are joined while they are in a window of time"
            raise self._table.fault(f"{item.place}.window", message, "write window: {last: 10m}")
        if size is None and pattern.sequence is not None:
            size = pattern.within
        operators = self._table.operators
        if size is None and not is_relation(operators[item.index], operators):
            message = f"{item.alias} happens, and is over at once"
            fix = "say how long it counts, such as window: {last: 10m}"
            raise self._table.fault(item.place, message, fix)
        if negated is None:
            return JoinInput(negated=False, window=size, where=None)
        where = item.pattern.where
        inner = Scope((*scope.roots, (item.alias, item.record)))
        rule = where and self._table.compile(where, inner, f"{item.place}.where", BOOL)
        return JoinInput(negated=True, window=size, where=rule or None)

    def _iterate(self, pattern: Pattern, place: str) -> int:
        (item,) = self._inputs([pattern.iterate or pattern], f"{place}.iterate")
        if pattern.times is None or pattern.within is None:
            raise self._table.fault(place, "iterate needs times and within", "add both")
        self._check_by(pattern.by, [item], place)
        text = self._table.text("iterate", [item.index], pattern.by, pattern.times, pattern.within)
        return self._table.add(
            Iterate(text, item.record, (item.index,), pattern.by, pattern.times, pattern.within)
        )

    def _latest(self, pattern: Pattern, place: str) -> int:
        (item,) = self._inputs([pattern.latest or pattern], f"{place}.latest")
        self._check_by(pattern.by, [item], place)
        order = pattern.order
        if order is None or item.record.field(order) not in ORDERED:
            message = f"{quote(order)} tells no order" if order else "latest needs order"
            raise self._table.fault(
                f"{place}.order", message, "name an attribute that is a number, text or time"
            )
        text = self._table.text("latest", [item.index], pattern.by, order)
        return self._table.add(Latest(text, item.record, (item.index,), pattern.by, order))

    def _aggregate(self, pattern: Pattern, place: str) -> int:
        inputs = self._inputs(pattern.aggregate or (), f"{place}.aggregate")
        self._check_by(pattern.by, inputs, place)
        if not pattern.values:
            raise self._table.fault(place, "nothing is computed", "add values: {n: count()}")
        values = []
        kinds: list[tuple[str, Type]] = [
            (name, kind) for name in pattern.by if (kind := inputs[0].record.field(name))
        ]
        faulty = False
        for name, text in pattern.values.items():
            try:
                value, kind = compile_value(
                    self._table, name, text, inputs, f"{place}.values.{name}"
                )
            except InvalidOperatorError:
                faulty = True
                continue
            values.append(value)
            kinds.append((name, kind))
        if faulty:
            raise InvalidOperatorError
        if len(dict(kinds)) < len(kinds):
            raise self._table.fault(f"{place}.values", "a value is called as a group", "rename it")
        indexes = tuple(item.index for item in inputs)
        window = _window(pattern.window, self._zone)
        text = self._table.text(
            "aggregate", indexes, pattern.by, window, [it.alias for it in inputs],
            dict(pattern.values),
        )  # fmt: skip
        return self._table.add(
            Aggregate(text, RecordType(tuple(kinds)), indexes, pattern.by, window, tuple(values))
        )

    def _visits(self, pattern: Pattern, place: str) -> int:
        (item,) = self._inputs([pattern.visits or pattern], f"{place}.visits")
        who, where, every, within = pattern.who, pattern.place, pattern.every, pattern.within
        if who is None or where is None or every is None or within is None:
            raise self._table.fault(place, "visits needs who, place, every and within", "add them")
        if pattern.request is None:
            raise self._table.fault(place, "nobody asks for visits", "name the type in request")
        if DAY % every:
            raise self._table.fault(
                f"{place}.every", "a day is not a multiple of it", "write such as 1s"
            )
        if self._zone != UNIVERSAL and QUARTER % every:
            message = f"days of {self._zone} need parts of a quarter of an hour"
            raise self._table.fault(f"{place}.every", message, "write such as 1s")
        asking = self._event(pattern.request)
        for record, names in ((item.record, (who, where)), (self._record(asking), (who,))):
            for name in names:
                if record.field(name) != STRING:
                    message = f"{quote(name)} is no string of {record}"
                    raise self._table.fault(place, message, "name an attribute that is a string")
        record = RecordType(
            (
                (who, STRING),
                (where, STRING),
                ("time", TIMESTAMP),
                ("date", INT),
                ("duration", DOUBLE),
                ("at", INT),
            )
        )
        indexes = (item.index, asking)
        zone = () if self._zone == UNIVERSAL else (self._zone,)
        text = self._table.text("visits", indexes, who, where, every, within, *zone)
        return self._table.add(Visits(text, record, indexes, who, where, every, within, self._zone))

    def _meetings(self, pattern: Pattern, place: str) -> int:
        (item,) = self._inputs([pattern.meetings or pattern], f"{place}.meetings")
        index = item.index
        operator = self._table.operators[index]
        if isinstance(operator, Refine) and operator.where is None:
            index = operator.inputs[0]
            operator = self._table.operators[index]
        if not isinstance(operator, Visits):
            raise self._table.fault(
                item.place, "meetings are found among visits", "name an event of all visits"
            )
        (who, _), (where, _), *rest = operator.attributes.fields
        record = RecordType(((who, STRING), ("other", STRING), (where, STRING), *rest))
        return self._table.add(Meetings(self._table.text("meetings", [index]), record, (index,)))


def _shape(assignments: Iterable[Assignment]) -> RecordType:
    return RecordType(tuple((assignment.name, assignment.value.type) for assignment in assignments))


def _window(window: EventWindow | None, zone: str) -> WindowSpec:
    if window is None:
        return WindowSpec("all")
    if window.last is not None:
        return WindowSpec("last", window.last)
    if window.each is not None:
        return WindowSpec("each", window.each, UNIVERSAL if window.each % DAY else zone)
    if window.count is not None:
        return WindowSpec("count", window.count)
    return WindowSpec("step")
