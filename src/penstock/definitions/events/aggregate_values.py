"""Values of aggregates, such as max(it.temp), typed and compiled; and what inputs of patterns are.

Rules that hold here:
- A value looks at one input; `count()` alone counts those of all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.cep.program import AggregateValue, Function
from penstock.definitions.events.operator_table import OperatorTable
from penstock.errors import quote
from penstock.lang import (
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    RecordType,
    Scalar,
    Scope,
    Type,
)
from penstock.model.kinds.events import Pattern

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
