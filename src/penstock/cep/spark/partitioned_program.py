"""Which operators look at one person at a time, and which join persons.

Rules that hold here:
- An operator is *parted* where all that it keeps is kept for each value of the key, the
  attribute that scenarios know their subjects by: then the events of different persons never
  meet in it, and parts of the persons can be followed apart. All others are *joint*.
- What is made of joint operators is joint. Where a scenario waits for a joint event, or
  scenarios know their subjects by different attributes, everything stays in one part.
- The joint program has all that joint operators are made of; its scenarios never move by
  events, it gets the transitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

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
from penstock.lang import STRING
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
