from __future__ import annotations

import io
import math
from typing import Any

import fastavro
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.masks.fields import Field, Schema, avro_names, avro_schema
from penstock.pipeline.records.avro import (
    NO_DATUM,
    NO_HEADER,
    NO_SCHEMA,
    NOT_ONE,
    AvroDecoder,
)
from tests.support.scale import scaled

SCHEMA: Schema = {
    "pid": Field.of("int"),
    "ins. co.": Field.of("string", optional=True),
    "fee": Field.of("double", optional=True),
}


def _write(schema: Any, record: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), record)
    return target.getvalue()


def test_names_that_avro_takes_stay_apart() -> None:
    made = avro_names(["a.b", "a_b", "a b", "1st", "plain"])
    assert made == {"a.b": "a_b", "a_b": "a_b_2", "a b": "a_b_3", "1st": "_1st", "plain": "plain"}
    assert [field.get("doc") for field in avro_schema(SCHEMA)["fields"]] == [None, "ins. co.", None]


@settings(max_examples=scaled(100))
@given(
    pid=st.integers(-(2**31), 2**31 - 1),
    company=st.none() | st.text(max_size=20).filter(lambda text: text.isprintable()),
    fee=st.none() | st.floats(),
    cut=st.integers(1, 5),
)
def test_a_datum_comes_back_whole_or_not_at_all(
    pid: int, company: str | None, fee: float | None, cut: int
) -> None:
    value = _write(avro_schema(SCHEMA), {"pid": pid, "ins__co_": company, "fee": fee})
    decoder = AvroDecoder(SCHEMA)
    found = decoder.decode(value)
    assert isinstance(found, dict)
    assert (found["pid"], found["ins. co."]) == (pid, company)
    assert found["fee"] == fee or (fee is not None and math.isnan(fee))
    assert isinstance(decoder.decode(value[:-cut]), str)
    assert decoder.decode(value + bytes(cut)) == NOT_ONE


@settings(max_examples=scaled(200))
@given(value=st.binary(max_size=40))
def test_any_bytes_have_an_outcome(value: bytes) -> None:
    found = AvroDecoder(SCHEMA).decode(value)
    assert isinstance(found, dict) or "record" in found or "field" in found


def test_records_that_name_their_schema() -> None:
    later = {
        "type": "record",
        "name": "Other",
        "fields": [
            {"name": "added", "type": "string"},
            {"name": "fee", "type": "string"},
            {"name": "pid", "type": "long"},
        ],
    }
    fewer = {"type": "record", "name": "Few", "fields": [{"name": "pid", "type": "int"}]}
    decoder = AvroDecoder(SCHEMA, {1: fewer, 2: later, 3: "int"}.__getitem__)

    def decode(number: int, datum: bytes) -> dict[str, Any] | str:
        return decoder.decode(b"\0" + number.to_bytes(4) + datum)

    assert decode(1, _write(fewer, {"pid": 7})) == {"pid": 7, "ins. co.": None, "fee": None}
    changed = decode(2, _write(later, {"added": "x", "fee": "free", "pid": 7}))
    assert changed == "the field 'fee' is declared double, and holds something else"
    large = decode(2, _write(later, {"added": "x", "fee": "1", "pid": 2**40}))
    assert large == "the field 'pid' is declared int, and holds something else"
    assert decode(3, b"\2") == "the Avro datum is no record"
    assert decode(4, b"") == NO_SCHEMA
    assert decode(1, b"") == NO_DATUM
    assert decoder.decode(b"\1\0\0\0\1") == NO_HEADER
    assert decoder.decode(b"\0\0") == NO_HEADER
    assert decoder.decode(None) == NO_DATUM
