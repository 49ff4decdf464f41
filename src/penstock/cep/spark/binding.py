"""Binding at scale: which primitive events a record is, as columns.

Rules that hold here:
- A column has the meaning of `cep.event_binding`: NULL where the record is no such event, or lacks
  an attribute that is not optional.
- Moments travel as microseconds since 1970: so workers make no detour through time zones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import reduce
from operator import and_, or_
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.cep.program import Assignment, PacketEvents
from penstock.errors import UsageError, quote
from penstock.lang import DURATION, TIMESTAMP, Expression
from penstock.lang.spark import Inputs, column

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
