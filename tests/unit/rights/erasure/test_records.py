"""Whom records are about, and what views make of a person."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from penstock.definitions import DefinitionSet
from penstock.definitions.views import schema_of
from penstock.eventlog import Record
from penstock.json_text import UNREAD
from penstock.masks.fields import avro_schema
from penstock.model.document import Document
from penstock.model.kinds import Stream
from penstock.rights.erasure.records import StreamRecords, ViewTrace, find_tokens, trace_views
from tests.support.rights.erasing import STREAM

SECRET = bytes(range(32))


def stream(**changed: Any) -> Stream:
    return Stream.model_validate({"name": "vitals", **STREAM, **changed})


def number(kind: str) -> Stream:
    return stream(fields=[{"name": "pid", "type": kind}])


@pytest.mark.parametrize(
    ("declared", "person", "value", "about"),
    [
        (stream(), "ann", b'{"pid":"ann"}', True),
        (stream(), "ann", b'{"pid":"anna"}', False),
        (stream(), "ann", b'{"pid":"\\u0061nn"}', True),
        (stream(), "ann", b'{"pid":["ann"]}', False),
        (stream(), "ann", b'{"pid":null,"ward":"ann"}', False),
        (stream(), "ann", b'{"pid":"bob","pid":"ann"}', True),
        (stream(), "7", b'{"pid":7}', True),
        (stream(), "ann", b"[]", False),
        (stream(), "ann", b"\xff", False),
        (number("int"), "7", b'{"pid":7}', True),
        (number("int"), "7", b'{"pid":"7"}', False),
        (number("int"), "7", b'{"pid":true}', False),
        (number("date"), "2020-01-02", b'{"pid":"2020-01-02"}', True),
        (stream(format="connect"), "ann", b'{"schema":{},"payload":{"pid":"ann"}}', True),
        (stream(format="connect"), "ann", b'{"pid":"ann"}', False),
    ],
)
def test_the_subject_of_the_stream_tells(
    declared: Stream,
    person: str,
    value: bytes,
    about: bool,  # noqa: FBT001
) -> None:
    assert StreamRecords(declared, person).is_about(Record(0, 0, b"", value)) is about


def test_a_key_counts_where_the_gateway_could_not_read() -> None:
    records = StreamRecords(stream(), "feed@1")
    assert records.is_about(Record(0, 0, b"feed@1", UNREAD + b"?"))
    # Elsewhere it may be the number of a chunk: nobody is erased because they are called so.
    assert not records.is_about(Record(0, 0, b"feed@1", b'{"pid":"bob"}'))
    assert not records.is_about(Record(0, 0, b"feed@1", b"rubbish"))


def test_avro_is_read_by_the_schema_of_the_stream() -> None:
    declared = stream(format="avro")
    made = io.BytesIO()
    row = {"pid": "ann", "ward": "n", "pulse": 1}
    fastavro.schemaless_writer(made, avro_schema(schema_of(declared)), row)
    records = StreamRecords(declared, "ann")
    assert records.needle is None
    assert records.is_about(Record(0, 0, b"", made.getvalue()))
    assert not records.is_about(Record(0, 0, b"", made.getvalue()[:2]))


def trace(*anonymizers: dict[str, Any]) -> ViewTrace:
    body = {"stream": "vitals", "anonymizers": list(anonymizers)}
    definitions = DefinitionSet.build(
        [Document("stream", "vitals", STREAM), Document("view", "v", body)]
    )
    (found,) = trace_views(definitions, SECRET, "ann")
    return found


def test_a_view_tells_the_person_by_the_name_or_by_a_token() -> None:
    assert trace().value == "ann"
    token = trace({"anonymizer": "tokenization", "keys": ["pid"]}).value
    assert token is not None
    assert len(token) == 32
    kept = trace({"anonymizer": "tokenization", "keys": ["pid"], "method": "vault", "vault": "v"})
    assert kept.tokens == (("v", kept.value),)
    assert kept.is_about({"pid": kept.value})
    assert not kept.is_about({"pid": "ann"})
    assert trace({"anonymizer": "suppression", "keys": ["pid"]}).value is None


def test_identifiers_of_a_record_have_entries_in_the_vault() -> None:
    fields = [*STREAM["fields"], {"name": "name", "type": "string", "category": "identifier"}]
    masks = [
        {"anonymizer": "tokenization", "keys": ["name", "ward"], "method": "vault", "vault": "v"}
    ]
    definitions = DefinitionSet.build(
        [
            Document("stream", "vitals", {**STREAM, "fields": fields}),
            Document("view", "v", {"stream": "vitals", "anonymizers": masks}),
        ]
    )
    found = trace_views(definitions, SECRET, "ann")[0]
    record = {"pid": "ann", "name": "Ann Berg", "ward": "north"}
    # The ward is no identifier: others have the same entry.
    tokens = list(find_tokens(found.view, found.stream, definitions, SECRET, record))
    assert len(tokens) == 1


@pytest.mark.parametrize(
    ("declared", "person", "value"),
    [
        (stream(), "10.0", b'{"pid":1e1}'),
        (stream(), '{"a":1}', b'{"pid":{"a": 1}}'),
        (number("boolean"), "true", b'{"pid":true}'),
    ],
)
def test_a_value_that_may_be_written_in_other_ways_is_not_sought_by_its_bytes(
    declared: Stream, person: str, value: bytes
) -> None:
    records = StreamRecords(declared, person)
    assert records.is_about(Record(0, 0, b"", value))
    assert records.needle is None
    assert StreamRecords(stream(), "ann").needle == b"ann"
