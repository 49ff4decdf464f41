"""Operators of patterns as they are compiled: the table of them, their inputs and aggregates.

Rules that hold here:
- An operator enters the table only where it has no problem. A problem is noted, and the
  other operators are still compiled.
- Operators with the same text are one: events over the same windows share them.
- A value looks at one input; `count()` alone counts those of all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.cep.program import AggregateValue, Function, Operator
from penstock.errors import InvalidError, Problem, quote
from penstock.lang import (
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    Expression,
    RecordType,
    Scalar,
    Scope,
    Type,
    compile_expression,
)
from penstock.model.kinds.events import Pattern


class InvalidOperatorError(Exception):
    """The operator has problems; the table has noted them."""


@dataclass(slots=True)
class OperatorTable:
    """Operators by index, one per text, and the problems of those that did not compile."""

    operators: list[Operator] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def add(self, operator: Operator) -> int:
        """Add an operator, unless one with its text is there."""
        index = self.known.get(operator.text)
        if index is None:
            index = self.known[operator.text] = len(self.operators)
            self.operators.append(operator)
            self.digests.append(hashlib.blake2s(operator.text.encode(), digest_size=8).hexdigest())
        return index

    def text(self, word: str, inputs: Iterable[int], *details: object) -> str:
        """Return the text of an operator: what it does, and to what."""
        of = " ".join(self.digests[index] for index in inputs)
        return " ; ".join([word, of, *map(str, details)])

    def fault(self, place: str, message: str, fix: str | None = None) -> InvalidOperatorError:
        """Note a problem, and return the error to raise."""
        self.problems.append(Problem(place, message, fix))
        return InvalidOperatorError()

    def compile(
        self, text: str, scope: Scope, place: str, expected: Type | None = None
    ) -> Expression:
        """Compile an expression, or note its problems."""
        try:
            return compile_expression(text, scope, expected)
        except InvalidError as error:
            self.problems += [
                Problem(place, f"{it.place}: {it.message}" if it.place else it.message, it.fix)
                for it in error.problems
            ]
            raise InvalidOperatorError from None


_VALUE: Final = re.compile(r"\s*([a-z]+)\s*\((.*)\)\s*", re.DOTALL)
_FUNCTIONS: Final[Mapping[str, Function]] = {
    "count": "count",
    "sum": "sum",
    "avg": "avg",
    "min": "min",
    "max": "max",
    "distinct": "distinct",
    "first": "first",
    "last": "last",
}
_NUMBERS: Final = (INT, DOUBLE)
ORDERED: Final = (INT, DOUBLE, STRING, TIMESTAMP, DURATION)
"""Types whose values have an order."""


@dataclass(frozen=True, slots=True)
class PatternInput:
    """One input of an operator: its index, rows, name in expressions, and how it was written."""

    index: int
    record: RecordType
    alias: str
    pattern: Pattern
    place: str


def compile_value(
    table: OperatorTable, name: str, text: str, inputs: Sequence[PatternInput], place: str
) -> tuple[AggregateValue, Type]:
    """Compile an aggregate such as max(it.temp); return it and the type of its result."""
    found = _VALUE.fullmatch(text)
    function = None if found is None else _FUNCTIONS.get(found[1])
    if found is None or function is None:
        raise table.fault(
            place, f"{quote(text)} is no aggregate", f"write one of {', '.join(_FUNCTIONS)}"
        )
    argument = found[2].strip()
    if function == "count" and not argument:
        return AggregateValue(name, function, tuple(range(len(inputs))), None), INT
    for slot, item in enumerate(inputs):
        if function == "count" and argument == item.alias:
            return AggregateValue(name, function, (slot,), None), INT
    scope = Scope(tuple((item.alias, item.record) for item in inputs))
    checked = table.compile(argument, scope, place)
    roots = {path.partition(".")[0] for path in checked.references}
    slots = [slot for slot, item in enumerate(inputs) if item.alias in roots]
    if len(slots) != 1:
        raise table.fault(
            place, f"{quote(text)} looks at {len(slots)} inputs", "let it look at one"
        )
    (slot,) = slots
    item = inputs[slot]
    expression = table.compile(argument, Scope(((item.alias, item.record),)), place)
    kind = expression.type
    allowed = {"sum": _NUMBERS, "avg": _NUMBERS, "min": ORDERED, "max": ORDERED}
    if kind not in allowed.get(function, (kind,)) or not isinstance(kind, Scalar):
        raise table.fault(place, f"{function} of {kind} is not defined")
    counted = function in {"count", "distinct"}
    result = INT if counted else DOUBLE if function == "avg" else kind
    return AggregateValue(name, function, (slot,), expression), result
