"""What becomes of every kind of record: a defined outcome each, with nothing of its content."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from penstock.definitions.views import schema_of
from penstock.masks.fields import avro_schema
from penstock.model.kinds import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.needs("java")

FIELDS = [
    {"name": "pid", "type": "int"},
    {"name": "long", "type": "long", "optional": True},
    {"name": "gluc.", "type": "float", "optional": True},
    {"name": 'a "b"', "type": "double", "optional": True},
    {"name": "well", "type": "boolean", "optional": True},
    {"name": "day", "type": "date", "optional": True},
    {"name": "at", "type": "timestamp", "optional": True},
    {"name": "name", "type": "string", "optional": True},
]
DAY, MOMENT = date(2024, 2, 29), datetime(2024, 2, 29, 10, tzinfo=UTC)
NOT_ONE = "the record is not one JSON object and nothing else"
NO_UNICODE = "a text of the record has half of a surrogate pair, or a name occurs twice"
NOT_READ = (
    "the gateway could not read the message as one JSON object in UTF-8, nested at most 100 "
    "deep, without a name twice and with numbers of at most 1000 characters; or it is too long "
    "with what the gateway adds"
)
NO_OBJECT = "the record is not a JSON object whose fields have the declared types"


def _wrong(name: str, kind: str) -> str:
    return f"the field {name!r} is declared {kind}, and holds something else"


def _endless(name: str) -> str:
    return f"the field {name!r} holds no finite number of its type"


# The record → what is wrong with it, or the fields that it has.
RECORDS: list[tuple[bytes, str | dict[str, Any]]] = [
    (b'{"pid": 1, "name": "}{", "other": {"x": [{}]}}', {"pid": 1, "name": "}{"}),
    (b'\t{"pid": 1}\r\n ', {"pid": 1}),
    (b'{"day":"2024-02-29","at":"2024-02-29T10:00:00Z"}', {"day": DAY, "at": MOMENT}),
    # Nulls are left to the masks, which know what is required.
    (b'{"pid": null}', {}),
    (b"{}", {}),
    # Of two, the last counts, as it does for Python and for most.
    (b'{"pid": 1, "pid": 2}', {"pid": 2}),
    (b'{"pid": 1, "added": "later"}', {"pid": 1}),
    (b'{"name": 5}', {"name": "5"}),
    # More than one object, or less.
    (b'{"pid": 1}{"pid": 2}', NOT_ONE),
    (b'{"pid": 1} {"pid": 2}', NOT_ONE),
    (b'{"pid": 1},{"pid": 2}', NOT_ONE),
    (b'{"pid": 1}],[{"pid": 2}', NOT_ONE),
    (b'{"pid": 1}} {"pid": 2}', NOT_ONE),
    (b'{"pid": 1},"":{"pid": 2}', NOT_ONE),
    (b'{"pid": 1} rubbish', NOT_ONE),
    (b'[{"pid": 1}]', NOT_ONE),
    (b"", NOT_ONE),
    (b"null", NOT_ONE),
    (b'"pid"', NOT_ONE),
    (b"\xef\xbb\xbf{}", NOT_ONE),
    (b'{"pid": 1', NOT_ONE),
    (b"{'pid': 1}", NO_OBJECT),
    (b"{pid: 1}", NO_OBJECT),
    # Encodings.
    (b'{"name": "\xff"}', "the record is not text in UTF-8"),
    (b'{"name": "\xed\xa0\x80"}', "the record is not text in UTF-8"),
    ('{"pid": 1}'.encode("utf-16-le"), NOT_ONE),
    (b'{"name": "\\ud83d\\ude00"}', {"name": "😀"}),
    (b'{"name": "\\\\ud800"}', {"name": "\\ud800"}),
    (b'{"name": "\\ud800"}', NO_UNICODE),
    (b'{"pid": 1, "other": ["\\uDFFF"]}', NO_UNICODE),
    # Types; the first field that is wrong is named, in the order of types.
    (b'{"pid": "5"}', _wrong("pid", "int")),
    (b'{"pid": 1.5}', _wrong("pid", "int")),
    (b'{"pid": 3000000000}', _wrong("pid", "int")),
    (b'{"long": 99999999999999999999}', _wrong("long", "long")),
    (b'{"gluc.": "high"}', _wrong("gluc.", "float")),
    (b'{"a \\"b\\"": true}', _wrong('a "b"', "double")),
    (b'{"well": 1}', _wrong("well", "boolean")),
    (b'{"day": "yesterday"}', _wrong("day", "date")),
    (b'{"day": "2023-02-29"}', _wrong("day", "date")),
    (b'{"at": "soon"}', _wrong("at", "timestamp")),
    # Numbers.
    (b'{"gluc.": 1e300}', _endless("gluc.")),
    (b'{"gluc.": 3.4e38}', {"gluc.": pytest.approx(3.4e38, rel=1e-6)}),
    (b'{"a \\"b\\"": 1e400}', _endless('a "b"')),
    (b'{"a \\"b\\"": -1e400}', _endless('a "b"')),
    (b'{"gluc.": NaN}', NO_OBJECT),
    (b'{"gluc.": "NaN"}', _wrong("gluc.", "float")),
    (b'{"gluc.": ' + b"1" * 1500 + b"}", NO_OBJECT),
    # Depth and size.
    (b'{"x": ' + b"[" * 99 + b"]" * 99 + b', "pid": 1}', {"pid": 1}),
    (b'{"x": ' + b"[" * 100 + b"]" * 100 + b', "pid": 1}', NO_OBJECT),
    (b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b', "pid": 1}', NO_OBJECT),
    (b'{"x": [0.' + b"9" * 1001 + b'], "pid": 1}', NO_OBJECT),
    (b'{"name": "' + b"x" * 1_000_000 + b'"}', {"name": "x" * 1_000_000}),
    (b'{"name": "' + b"x" * (1 << 20) + b'"}', "the record is longer than 1048576 bytes"),
    # What the gateway could not read.
    (b'!unread {"pid": 1}', NOT_READ),
    (b"~erased~    ", "the record was erased"),
]


def _parse(spark: SparkSession, values: list[bytes], **more: Any) -> list[str | dict[str, Any]]:
    from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, PERSON, PROBLEM, TIME  # noqa: PLC0415  # noqa: PLC0415
    from penstock.pipeline.records.parser import parse_records  # noqa: PLC0415
    from penstock.pipeline.sources.event_log import SCHEMA  # noqa: PLC0415

    stream = Stream.model_validate({"name": "s", "fields": FIELDS, **more})
    rows = [(number, 7, value) for number, value in enumerate(values)]
    parsed = parse_records(spark.createDataFrame(rows, SCHEMA), stream).toArrow()
    found: list[str | dict[str, Any]] = []
    for row in sorted(parsed.to_pylist(), key=lambda row: row[OFFSET]):
        problem = row.pop(PROBLEM)
        for name in (OFFSET, MILLISECONDS, PERSON, TIME):
            row.pop(name, None)
        held = {name: value for name, value in row.items() if value is not None}
        found.append(held if problem is None else problem)
    return found


def test_every_kind_of_json_has_its_outcome(spark: SparkSession) -> None:
    found = _parse(spark, [value for value, _ in RECORDS])
    pairs = zip(RECORDS, found, strict=True)
    surprises = {value[:80]: outcome for (value, wanted), outcome in pairs if outcome != wanted}
    assert surprises == {}


def test_envelopes_of_kafka_connect(spark: SparkSession) -> None:
    payload = {"pid": 1, "day": 19782, "at": 1709200800000, "name": "}"}
    records = [
        ({"schema": {"type": "struct"}, "payload": payload}, {**payload, "day": DAY, "at": MOMENT}),
        ({"payload": {"pid": "x"}}, _wrong("pid", "int")),
        ({"payload": {"day": "2024-02-29"}}, _wrong("day", "date")),
        ({"payload": None}, "the envelope has no payload"),
        ({"pid": 1}, "the envelope has no payload"),
        ({"payload": 5}, NO_OBJECT),
    ]
    values = [json.dumps(record).encode() for record, _ in records]
    assert _parse(spark, values, format="connect") == [wanted for _, wanted in records]


def test_avro_datums(spark: SparkSession) -> None:
    stream = Stream.model_validate({"name": "s", "fields": FIELDS})
    schema = fastavro.parse_schema(avro_schema(schema_of(stream)))
    record = {"pid": 1, "gluc.": 2.5, "day": DAY, "at": MOMENT, "name": "Ött"}
    target = io.BytesIO()
    fastavro.schemaless_writer(target, schema, {**record, "gluc_": 2.5})
    value = target.getvalue()
    found = _parse(spark, [value, value[:-1], value + b"\0", b""], format="avro")
    assert found == [
        record,
        "the record is no Avro datum of its schema",
        "the record is not one Avro datum and nothing else",
        "the record is no Avro datum of its schema",
    ]
