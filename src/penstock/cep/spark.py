"""Detection at scale: which operators look at one person at a time, and events as Spark columns.

    program ─ separate ─→ partitioned: subjects by themselves, any number of partitions in parallel
                       └→ joint: joins across subjects, in one place, with the others' transitions
    record ─ bind ─→ primitive events ─→ partition of its subject ─→ its engine ─→ results

Rules that hold here:
- The operators are those of the in-line engine, with their state (`partition_engine`); only binding
  has a second form, made of the expressions' columns. So both detect the same.
- pyspark is imported in this module alone, and nothing in line imports it.
- An operator is *parted* where all that it keeps is kept for each value of the key, the
  attribute that scenarios know their subjects by: then the events of different persons never
  meet in it, and parts of the persons can be followed apart. All others are *joint*.
- What is made of joint operators is joint. Where a scenario waits for a joint event, or
  scenarios know their subjects by different attributes, everything stays in one part.
- The joint program has all that joint operators are made of; its scenarios never move by
  events, it gets the transitions.
- A column has the meaning of `cep.event_binding`: NULL where the record is no such event, or lacks
  an attribute that is not optional.
- Moments travel as microseconds since 1970: so workers make no detour through time zones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from typing import Final, TypeAlias, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.cep.program import (
    Aggregate,
    Assignment,
    Iterate,
    Join,
    Latest,
    Meetings,
    Operator,
    PacketEvents,
    Program,
    Refine,
    RequestEvents,
    Union,
    Visits,
)
from penstock.errors import UsageError, quote
from penstock.lang import DURATION, STRING, TIMESTAMP, Expression
from penstock.lang.spark import Inputs, column
from penstock.lang.tree import find_path

Carried: TypeAlias = frozenset[str] | None
"""The attributes of an operator's rows that always are the key; None: it is joint."""

_SUBJECT = ("r", "subject")


@dataclass(frozen=True, slots=True)
class PartitionedProgram:
    """A program in two: what can be followed in parts, and what cannot."""

    key: str | None
    """The attribute that packets are parted by; None: all stay in one part."""
    keyed: Program
    joint: Program | None
    results: frozenset[str]
    """The complex event types of the joint program that the parted one does not have."""


def list_packets(program: Program) -> dict[str, PacketEvents]:
    """Return the types that are bound to packets, in the order in which engines bind them."""
    found = {name: program.operators[index] for name, index in sorted(program.types.items())}
    return {name: it for name, it in found.items() if isinstance(it, PacketEvents)}


def partition_program(program: Program) -> PartitionedProgram:
    """Separate a program."""
    keys = {scenario.attribute for scenario in program.scenarios.values()}
    if len(keys) == 1:
        (key,) = keys
        carried = _follow(program.operators, key)
        if all(key in (carried[index] or ()) for index in _driving(program)):
            return _split(program, key, carried)
    return PartitionedProgram(None, program, None, frozenset())


def _driving(program: Program) -> Iterable[int]:
    """Yield the operators whose events scenarios wait for."""
    for scenario in program.scenarios.values():
        for evolution in program.plans[scenario.plan].evolutions:
            if evolution.event is not None:
                yield program.types[evolution.event]


def _follow(operators: Sequence[Operator], key: str) -> list[Carried]:
    """Return what each operator carries."""
    met = {index for it in operators if isinstance(it, Meetings) for index in it.inputs}
    carried: list[Carried] = []
    for index, operator in enumerate(operators):
        given = [carried[source] for source in operator.inputs]
        known = [it for it in given if it is not None]
        joint = len(known) < len(given) or index in met
        carried.append(None if joint else _carry(operator, known, key))
    return carried


def _carry(  # noqa: PLR0911 - one case per operator
    operator: Operator, given: list[frozenset[str]], key: str
) -> Carried:
    """Return what an operator carries whose inputs are parted."""
    common = frozenset.intersection(*given) if given else frozenset()
    match operator:
        case PacketEvents(attributes=attributes):
            return frozenset({key}) if attributes.field(key) == STRING else None
        case RequestEvents(assignments=assignments):
            return frozenset(it.name for it in assignments if find_path(it.value.tree) == _SUBJECT)
        case Refine(assignments=None) | Union():
            return common
        case Refine(assignments=assignments):
            return _reshape(assignments or (), given)
        case Aggregate(by=by):
            return frozenset(by) & common or None
        case Latest(by=by) | Iterate(by=by):
            return common if common & set(by) else None
        case Join(by=by, sides=sides, assignments=assignments):
            positive = [it for it, side in zip(given, sides, strict=True) if not side.negated]
            return _reshape(assignments, positive) if common & set(by) else None
        case Visits(who=who):
            return frozenset({who}) if who in common else None
        case Meetings():
            return None
        case _:
            assert_never(operator)


def _reshape(assignments: Iterable[Assignment], given: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the attributes that are set to carried ones; roots stand for inputs in order."""
    found = set()
    for assignment in assignments:
        path = find_path(assignment.value.tree)
        if path is not None and len(path) == len(("root", "attribute")):
            place = assignment.value.scope.names.index(path[0])
            if path[1] in given[place]:
                found.add(assignment.name)
    return frozenset(found)


def _split(program: Program, key: str, carried: Sequence[Carried]) -> PartitionedProgram:
    operators = program.operators
    driving = set(_driving(program))
    joint = {index for index, it in enumerate(carried) if it is None}
    below = _with_inputs(operators, joint)
    used = {
        source for index, it in enumerate(operators) if index not in joint for source in it.inputs
    }
    parted = {
        index
        for index, operator in enumerate(operators)
        if index not in joint
        and (not isinstance(operator, PacketEvents) or index in used | driving)
    }
    results = {
        name
        for name, index in program.types.items()
        if index in joint and not isinstance(operators[index], PacketEvents)
    }
    sources = {
        name
        for name, index in program.types.items()
        if isinstance(operators[index], PacketEvents | RequestEvents)
    }
    return PartitionedProgram(
        key,
        _take(program, parted, program.types),
        _take(program, below, [*results, *sources]) if results else None,
        frozenset(results),
    )


def _with_inputs(operators: Sequence[Operator], chosen: Iterable[int]) -> set[int]:
    found: set[int] = set()
    waiting = list(chosen)
    while waiting:
        index = waiting.pop()
        if index not in found:
            found.add(index)
            waiting.extend(operators[index].inputs)
    return found


def _take(program: Program, chosen: set[int], names: Iterable[str] | Mapping[str, int]) -> Program:
    """Return a program of some operators, known by some names."""
    place = {index: number for number, index in enumerate(sorted(chosen))}
    moved: list[Operator] = []
    for index in place:
        operator = program.operators[index]
        inputs = tuple(place[source] for source in operator.inputs)
        # Each kind of operator has its own number of inputs, which stays as it is.
        moved.append(replace(operator, inputs=inputs))  # type: ignore[arg-type]
    types = {name: place[it] for name in names if (it := program.types[name]) in place}
    return replace(program, operators=tuple(moved), types=types)


HAPPENED: Final = "happened"
OWN: Final = "own"
_PROVIDED: Final = ("t.topic", "t.payload", "o.", "e.time")
"""What every record provides."""


def bind_types(
    types: Mapping[str, PacketEvents], inputs: Inputs, provided: Collection[str] = frozenset()
) -> dict[str, Column]:
    """Return for each type a struct of what the event says, NULL where there is none.

    `provided` is what records have beyond the usual, such as `s.uid`. The fields are the
    attributes, by `field_name`; `happened`, the event's own time in milliseconds;
    and `own`, its own identifier.
    """
    for name, spec in types.items():
        _check(name, spec, provided)
    return {name: _bind(name, spec, inputs) for name, spec in types.items()}


def field_name(attribute: str) -> str:
    """Return the field that holds an attribute: never one of the others."""
    return f"it.{attribute}"


def _bind(name: str, spec: PacketEvents, inputs: Inputs) -> Column:
    given = inputs["t"]
    topic = given.getField("topic") if isinstance(given, Column) else given["topic"]
    matched = reduce(or_, (match_filter(topic, filter_) for filter_ in spec.filters))
    holds = [matched, column(spec.when, inputs)]
    values = [_exact_column(assignment.value, inputs) for assignment in spec.assignments]
    for assignment, value in zip(spec.assignments, values, strict=True):
        if assignment.name not in spec.optional:
            holds.append(value.isNotNull())
    happened = F.lit(None).cast("bigint")
    if spec.time is not None:
        time = column(spec.time, inputs)
        happened = F.unix_millis(time) if spec.time.type == TIMESTAMP else time
        holds.append(happened.isNotNull())
    own = F.lit(None).cast("string")
    if spec.id is not None:
        said = column(spec.id, inputs)
        own = F.concat(F.lit(f"{name}/"), said)
        holds += [said.isNotNull(), said != ""]
    parts = [
        value.alias(field_name(assignment.name))
        for assignment, value in zip(spec.assignments, values, strict=True)
    ]
    event = F.struct(*parts, happened.alias(HAPPENED), own.alias(OWN))
    # A condition that is missing does not hold; CASE takes it so.
    return F.when(reduce(and_, holds), event)


def _exact_column(expression: Expression, inputs: Inputs) -> Column:
    made = column(expression, inputs)
    if expression.type == TIMESTAMP:
        return F.unix_micros(made)
    if expression.type == DURATION:
        return (made.cast("decimal(20,6)") * 1_000_000).cast("bigint")
    return made


def match_filter(topic: Column, filter_: str) -> Column:
    """Return whether a topic matches a filter, by the rules of MQTT."""
    if filter_ == "#":
        return ~topic.startswith("$")
    levels = filter_.split("/")
    open_ended = levels[-1] == "#"
    parts = ["[^/]*" if it == "+" else re.escape(it) for it in levels[: -1 if open_ended else None]]
    pattern = f"(?s)^{'/'.join(parts)}{'(/.*)?' if open_ended else ''}\\z"
    found = topic.rlike(pattern)
    return found & ~topic.startswith("$") if levels[0] == "+" else found


def _check(name: str, spec: PacketEvents, provided: Collection[str]) -> None:
    """Refuse a type that reads what no record provides."""
    needed = [it for it in (spec.when, spec.time, spec.id) if it is not None]
    needed += [it.value for it in _required(spec)]
    for expression in needed:
        for path in sorted(expression.references):
            if not path.startswith(_PROVIDED) and path not in provided:
                raise UsageError(
                    f"the event {quote(name)} looks at {path}, which records do not tell",
                    fix="look at the topic, the payload, o or e.time, and at s.uid where the "
                    "stream adds the publisher; or detect it at the gateway",
                )


def _required(spec: PacketEvents) -> list[Assignment]:
    return [it for it in spec.assignments if it.name not in spec.optional]
