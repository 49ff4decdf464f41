"""What a stream's records tell of the messages that they were: the roots of expressions.

Rules that hold here:
- The topic is what was authorised, so that it must not come from a payload: it is told by the
  field that the gateway writes it to (`adds`), or by the stream's only pattern (`from`), whose
  levels all are fixed or named, or, where no gateway feeds the stream, by its field `topic`.
- A payload's field is a column of its declared type. One that the stream does not have is
  missing; one that it has with another type is refused.
- Of who published a message `s.uid` is known, and that only where the gateway writes it down
  (`adds`): attributes of users change, and records do not tell which they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.cep.spark import match_filter
from penstock.errors import UsageError, quote
from penstock.lang import BOOL, DOUBLE, INT, STRING, TIMESTAMP, RecordType, Scope, Type
from penstock.lang.spark import Inputs, spark_type
from penstock.model.kinds import ObjectShape, Stream
from penstock.pipeline.records.columns import TIME

TOPIC: Final = "topic"
USER: Final = "uid"
"""The attribute of `s` that names who published."""
_HELD: Final[Mapping[str, Type]] = {
    "string": STRING,
    "int": INT,
    "long": INT,
    "double": DOUBLE,
    "boolean": BOOL,
    "timestamp": TIMESTAMP,
}
"""Types of fields that hold values of expressions as they are."""


def make_inputs(stream: Stream, scope: Scope, shapes: Iterable[ObjectShape]) -> Inputs:
    """Return the roots of expressions over the parsed records of a stream."""
    topic = find_topic(stream)
    message = _record(scope, "t")
    declared = message.field("payload")
    payload = declared.fields if isinstance(declared, RecordType) else ()
    fields = {name: _field(stream, name, kind) for name, kind in payload}
    t = {name: _missing(kind) for name, kind in message.fields if name != "payload"}
    e = {name: _missing(kind) for name, kind in _record(scope, "e").fields}
    held = [value.alias(name) for name, value in fields.items()]
    told = {it.name: dict(payload).get(it.name) for it in stream.fields}
    found = [(shape, _find_in(shape, topic, fields, told)) for shape in shapes]
    s = {name: _missing(kind) for name, kind in _record(scope, "s").fields}
    publisher = stream.adds.publisher if stream.adds else None
    if publisher is not None:
        s[USER] = F.col(f"`{publisher}`")
    return {
        "s": s,
        "o": {
            name: _agree(
                [
                    (match_filter(topic, shape.filter), attributes[name][0])
                    for shape, attributes in found
                    if name in attributes and attributes[name][1] == kind
                ],
                kind,
            )
            for name, kind in _record(scope, "o").fields
        },
        "e": {**e, "time": F.timestamp_millis(F.col(f"`{TIME}`"))},
        "t": {**t, "topic": topic, "payload": F.struct(F.lit(0).alias(""), *held)},
    }


def list_told(stream: Stream) -> frozenset[str]:
    """Return what the records of a stream tell beyond topic, payload and time."""
    publisher = stream.adds.publisher if stream.adds else None
    return frozenset() if publisher is None else frozenset({f"s.{USER}"})


def find_topic(stream: Stream) -> Column:
    """Return the topic of the message that a record was."""
    if stream.adds is not None and stream.adds.topic is not None:
        return F.col(f"`{stream.adds.topic}`")
    if not stream.patterns:
        if any(it.name == TOPIC and it.type == "string" for it in stream.fields):
            return F.col(TOPIC)
        raise UsageError(
            f"records of the stream {quote(stream.name)} do not tell the topic of their messages",
            fix="add a field `topic` of type string, or `from` with one pattern",
        )
    levels = stream.patterns[0].split("/")
    if len(stream.patterns) > 1 or any(it in {"+", "#"} for it in levels):
        raise UsageError(
            f"what topic a record of the stream {quote(stream.name)} comes from is not certain",
            fix="let the gateway add the topic (`adds: {topic: FIELD}`), or write one pattern "
            "under `from` with a name for each wildcard, such as +ward",
        )
    parts = [
        F.col(f"`{it[1:]}`").cast("string") if it.startswith("+") else F.lit(it) for it in levels
    ]
    return F.concat_ws("/", *parts)


def _record(scope: Scope, root: str) -> RecordType:
    record = scope.root(root)
    if record is None:
        raise TypeError(f"the scope of events has no {root}")
    return record


def _missing(kind: Type) -> Column:
    return F.lit(None).cast(spark_type(kind))


def _field(stream: Stream, name: str, kind: Type) -> Column:
    found = next((it for it in stream.fields if it.name == name), None)
    if found is None:
        return _missing(kind)
    held = _HELD.get(found.type)
    if held != kind and (held, kind) != (INT, DOUBLE):
        raise UsageError(
            f"the stream {quote(stream.name)} has {quote(name)} as {found.type}, but messages "
            f"have it as {kind}",
            fix="declare it alike in the stream and in the vocabulary",
        )
    return F.col(f"`{name}`").cast(spark_type(kind))


def _find_in(
    shape: ObjectShape,
    topic: Column,
    fields: Mapping[str, Column],
    told: Mapping[str, Type | None],
) -> dict[str, tuple[Column, Type | None]]:
    """Return the attributes that a definition finds, with their types."""
    levels = F.split(topic, "/")
    found: dict[str, tuple[Column, Type | None]] = {
        name: (F.get(levels, F.lit(place)), STRING) for place, name in shape.levels.items()
    }
    for name, path in shape.payload.items():
        if path in fields and path in told:
            found[name] = fields[path], told[path]
    return found


def _agree(candidates: list[tuple[Column, Column]], kind: Type) -> Column:
    """Return what all that hold for a topic find; NULL where they differ."""
    if not candidates:
        return _missing(kind)
    first = reduce(lambda chosen, it: chosen.when(*it), candidates[1:], F.when(*candidates[0]))
    differs = [holds & ~value.eqNullSafe(first) for holds, value in candidates[1:]]
    return F.when(~reduce(or_, differs), first) if differs else first
