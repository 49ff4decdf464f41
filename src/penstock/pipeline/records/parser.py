"""Records of a stream as typed columns, and why some are none.

    value ─→ json, connect: columns of Spark    ─┬→ fields, person, time, problem
           ─→ avro: tasks decode, batch by batch ─┘

    value ──▶ tasks ask for the keys of a batch ──▶ the value, or that it was erased

Rules that hold here:
- A record is one JSON object, the payload of one envelope of Kafka Connect, or one Avro
  datum, and nothing after it. A value of another type than declared makes the whole record a
  problem; it never becomes null by itself. What a schema does not name is left out.
- Texts may be written as numbers or objects; they become the JSON text of these. Numbers are
  finite. JSON has the limits of `json_text`, which the gateway reads by; what it could not
  read stands behind a mark and is a problem. In records that no gateway has written, of a
  name that stands twice in an object the last counts.
- A problem names what is wrong, and the field, and never holds what the record said.
- Who runs Spark says once where keys are (`use_keys`). Without that, a sealed stream is not
  read at all: to set all its records aside would lose them.
- Keys come to the tasks that open values, and stand in no plan: tasks get an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.config import Config
from penstock.definitions.views import schema_of
from penstock.errors import UnavailableError, quote
from penstock.json_text import CLOSED, DEPTH, ERASED, FORGED, NUMBER, SIZE, UNREAD
from penstock.masks.chain import type_reason
from penstock.masks.fields import DECIMALS, MAX_DOUBLE, MAX_FLOAT, FieldType, Schema
from penstock.masks.spark import spark_type
from penstock.model.kinds import Stream
from penstock.pipeline.records.avro import WAS_ERASED, AvroDecoder, FindSchema, decode_frame
from penstock.pipeline.records.columns import (
    MILLISECONDS,
    OFFSET,
    PERSON,
    PROBLEM,
    TIME,
    VALUE,
    place_in_time,
    refuse_time,
    tell_time,
)
from penstock.pipeline.session import freeze_loaded
from penstock.store.sealed_records import KeyAddress

_known: list[KeyAddress] = []


def use_keys(config: Config) -> None:
    """Read under the keys of an installation all that this process reads from now on."""
    _known[:] = [KeyAddress.of(config)]


def open_sealed(frame: DataFrame, stream: Stream) -> DataFrame:
    """Return records with their values opened, where the stream has them sealed."""
    if stream.erasure != "shred" and stream.sealed is None:
        return frame
    if not _known:
        raise UnavailableError(
            f"the records of {quote(stream.name)} are sealed, and no keys are at hand",
            fix="read the stream with `penstock views run` and the settings of the installation",
        )
    address = _known[0]
    layers = address.layers(stream)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        for batch in batches:
            values = address.open(layers, batch[VALUE].to_pylist())
            opened = pa.array(values, pa.binary())
            columns = [opened if name == VALUE else batch[name] for name in batch.schema.names]
            yield pa.record_batch(columns, names=batch.schema.names)

    return frame.mapInArrow(run, frame.schema)


_PARSED: Final = "penstock:parsed"
_TEXT: Final = "penstock:text"
_LONG: Final = "penstock:long"
_CORRUPT: Final = "penstock:corrupt"
_PAYLOAD: Final = "payload"

NO_TEXT: Final = "the record is not text in UTF-8"
TOO_LONG: Final = f"the record is longer than {SIZE} bytes"
NOT_READ: Final = (
    "the gateway could not read the message as one JSON object in UTF-8, "
    f"nested at most {DEPTH} deep, without a name twice and with numbers of at most "
    f"{NUMBER} characters; or it is too long with what the gateway adds"
)
WAS_CLOSED: Final = "the record is sealed, and this installation has no key for it"
WAS_FORGED: Final = "the record is not sealed as its stream is, or was changed"
NO_UNICODE: Final = "a text of the record has half of a surrogate pair, or a name occurs twice"
NO_OBJECT: Final = "the record is not a JSON object whose fields have the declared types"
NOT_ONE: Final = "the record is not one JSON object and nothing else"
NO_PAYLOAD: Final = "the envelope has no payload"
NOT_FINITE: Final = "the field {} holds no finite number of its type"
_STRING: Final = types.StringType()

_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    # JSON has neither NaN nor texts in single quotes.
    "allowNonNumericNumbers": "false",
    "allowSingleQuotes": "false",
    # The limits that the gateway's reader has.
    "maxNestingDepth": str(DEPTH),
    "maxNumLen": str(NUMBER),
}
_SURROGATE: Final = r"\\u[dD][89a-fA-F]"


class _Found(NamedTuple):
    """What is found in values: steps, each of which selects; the fields; and what is wrong."""

    steps: list[list[Column]]
    fields: dict[str, Column]
    reasons: list[Column]


def parse_records(
    frame: DataFrame, stream: Stream, find_schema: FindSchema | None = None
) -> DataFrame:
    """Return the fields of records, their offsets, persons and times, and their problems.

    With `find_schema`, Avro values name their schema by a number, as those of a schema
    registry do; without, all have the schema of the stream.
    """
    known = PROBLEM in frame.columns
    frame = open_sealed(frame, stream)
    if stream.format == "avro":
        frame = decode_frame(frame, AvroDecoder(schema_of(stream), find_schema))
    for columns in _compile(frame.sparkSession, stream, known=known):
        frame = frame.select(*columns)
    return frame


@lru_cache(maxsize=64)
def _compile(_: SparkSession, stream: Stream, *, known: bool) -> list[list[Column]]:
    """Return what to select, one after another; kept for the next batches of a session.

    `known`: the source tells some problems. Columns name what they need and hold no frame.
    """
    schema = schema_of(stream)
    if stream.format == "avro":
        fields = {name: _named(name) for name in schema}
        found = _Found([], fields, [_named(PROBLEM)])
    else:
        found = _parse_json(schema, known=known, enveloped=stream.format == "connect")
    columns = []
    for name, field in schema.items():
        column = found.fields[name]
        if field.type in DECIMALS:
            most = MAX_FLOAT if field.type is FieldType.FLOAT else MAX_DOUBLE
            # NaN is larger than every number to Spark.
            endless = F.abs(column) > F.lit(most)
            found.reasons.append(F.when(endless, F.lit(NOT_FINITE.format(repr(name)))))
            column = column.cast(spark_type(field.type))
        columns.append(column.alias(name))
    subject = found.fields[stream.subject] if stream.subject else None
    person = _named(OFFSET) if subject is None else F.when(subject.isNotNull(), F.xxhash64(subject))
    arrived = _named(MILLISECONDS)
    told = arrived
    if stream.time is not None:
        told = tell_time(found.fields[stream.time], schema[stream.time].type)
        found.reasons.append(refuse_time(told, arrived, stream.ahead, stream.behind))
    made = [
        *columns,
        _named(OFFSET),
        person.alias(PERSON),
        place_in_time(told, arrived).alias(TIME),
        F.coalesce(*found.reasons, F.lit(None).cast("string")).alias(PROBLEM),
    ]
    return [*found.steps, made]


def _parse_json(schema: Schema, *, known: bool, enveloped: bool) -> _Found:
    """Read values as JSON; `enveloped`: the record is the payload of an object."""
    fields = types.StructType(
        [
            types.StructField(name, _read_as(field.type, enveloped=enveloped))
            for name, field in schema.items()
        ]
    )
    outer = types.StructType([types.StructField(_PAYLOAD, fields)]) if enveloped else fields
    read_as = types.StructType([*outer, types.StructField(_CORRUPT, types.StringType())])
    long = F.coalesce(F.octet_length(_named(VALUE)) > SIZE, F.lit(False))  # noqa: FBT003
    text = F.when(~long, F.try_validate_utf8(_named(VALUE).cast("string")))
    told = [_named(PROBLEM)] if known else []
    carried = [_named(OFFSET), _named(MILLISECONDS), *told]
    parsed = F.from_json(_named(_TEXT), read_as, _OPTIONS).alias(_PARSED)
    steps = [
        [*carried, long.alias(_LONG), text.alias(_TEXT)],
        [*carried, _named(_LONG), _named(_TEXT), parsed],
    ]
    whole = _named(_PARSED)
    inner = whole.getField(_PAYLOAD) if enveloped else whole
    reasons = [
        *told,
        F.when(_named(_LONG), F.lit(TOO_LONG)),
        F.when(_named(_TEXT).isNull(), F.lit(NO_TEXT)),
        F.when(F.startswith(_named(_TEXT), F.lit(ERASED.decode())), F.lit(WAS_ERASED)),
        F.when(_named(_TEXT) == F.lit(CLOSED.decode()), F.lit(WAS_CLOSED)),
        F.when(_named(_TEXT) == F.lit(FORGED.decode()), F.lit(WAS_FORGED)),
        F.when(F.startswith(_named(_TEXT), F.lit(UNREAD.decode())), F.lit(NOT_READ)),
        F.when(~_is_one_object(_named(_TEXT)), F.lit(NOT_ONE)),
    ]
    corrupt = whole.isNull() | whole.getField(_CORRUPT).isNotNull()
    path = (_PAYLOAD,) if enveloped else ()
    named = explain(_named(_TEXT), inner, schema, _OPTIONS, path)
    reasons.append(F.when(corrupt, F.coalesce(named, F.lit(NO_OBJECT))))
    reasons.append(F.when(_has_half_pair(_named(_TEXT)), F.lit(NO_UNICODE)))
    if enveloped:
        reasons.append(F.when(inner.isNull(), F.lit(NO_PAYLOAD)))
    made = {
        name: _from_number(inner.getField(name), field.type, enveloped=enveloped)
        for name, field in schema.items()
    }
    return _Found(steps, made, reasons)


def _is_one_object(text: Column) -> Column:
    """Whether a text is one object; Spark reads the first value and passes over the rest.

    In a flat object the first } is the end, unless a text holds one. All others are put
    between brackets, and as a value between braces: both are well-formed, and hold one item,
    only if nothing closes the one or the other early. That is slow, and seldom needed.
    """
    head = F.substring_index(text, "}", 1)
    flat = F.startswith(text, F.lit("{")) & (F.octet_length(head) + 1 == F.octet_length(text))
    in_array = F.from_json(F.concat(F.lit("["), text, F.lit("]")), "array<string>")
    in_object = F.from_json(F.concat(F.lit('{"":'), text, F.lit("}")), "map<string,string>")
    bare = F.trim(text, F.lit(" \t\r\n"))
    return flat | (
        F.startswith(bare, F.lit("{"))
        & (F.coalesce(F.size(in_array), F.lit(0)) == 1)
        & (F.coalesce(F.size(in_object), F.lit(0)) == 1)
    )


def _has_half_pair(text: Column) -> Column:
    """Whether a text is escaped that is no Unicode; Spark would make a ? of it.

    `try_parse_json` refuses it, but costs as much as all else: only texts with such escapes
    are given to it.
    """
    may = F.contains(text, F.lit("\\u")) & F.rlike(text, F.lit(_SURROGATE))
    return may & F.try_parse_json(text).isNull()


def _read_as(kind: FieldType, *, enveloped: bool) -> types.DataType:
    """Return the type that JSON is read as, wide enough to notice what is too large."""
    if kind is FieldType.FLOAT:
        return types.DoubleType()
    if enveloped and kind is FieldType.DATE:
        return types.IntegerType()
    if enveloped and kind is FieldType.TIMESTAMP:
        return types.LongType()
    return spark_type(kind)


def _from_number(column: Column, kind: FieldType, *, enveloped: bool) -> Column:
    """Return dates as dates; Kafka Connect counts days and milliseconds since 1970."""
    if enveloped and kind is FieldType.DATE:
        return F.date_from_unix_date(column)
    if enveloped and kind is FieldType.TIMESTAMP:
        return F.timestamp_millis(column)
    return column


def _named(name: str) -> Column:
    return F.col(f"`{name}`")


def explain(
    text: Column, read: Column, schema: Schema, options: Mapping[str, str], path: tuple[str, ...]
) -> Column:
    """Return what is wrong with the first field that is not of its type, or null.

    `read` has the fields as they were read, null where they are wrong. Read once more as
    texts, which anything is, those that are wrong are there.
    """
    shape = types.StructType([types.StructField(name, _STRING) for name in schema])
    for name in reversed(path):
        shape = types.StructType([types.StructField(name, shape)])
    written = F.from_json(text, shape, dict(options))
    for name in path:
        written = written.getField(name)
    wrong = F.array_except(_present(written), _present(read))
    reasons = [
        F.lit(part)
        for name, field in schema.items()
        for part in (name, type_reason(name, field.type))
    ]
    return F.try_element_at(F.create_map(*reasons), F.get(wrong, F.lit(0)))


def _present(record: Column) -> Column:
    """Return the names of the fields that are not null."""
    return F.json_object_keys(F.to_json(record))
