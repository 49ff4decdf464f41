"""Avro: schemas that a registry knows by number, values as typed columns.

Rules that hold here:
- A value is one binary datum, and nothing after it. Its schema is that of the stream; or the
  one that the value names by a number, with the zero byte and the four bytes of the number
  before the datum, where a schema registry is named.
- That a registry does not know a number is a fact about the record; that it does not answer is
  trouble that passes, and stops the batch.
- Whatever the bytes do to the decoder is a problem of the record, never of the batch.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, Final, TypeAlias

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, types

from penstock.eventlog.registry import HEADER
from penstock.json_text import ERASED
from penstock.masks.chain import type_reason
from penstock.masks.fields import CHECKS, Schema, avro_names, avro_schema
from penstock.masks.spark import spark_type
from penstock.pipeline.records.columns import MILLISECONDS, OFFSET, PROBLEM, VALUE, arrow_schema
from penstock.pipeline.session import freeze_loaded

NO_HEADER: Final = "the record does not name its Avro schema"
NO_SCHEMA: Final = "the Avro schema that the record names is not known"
WAS_ERASED: Final = "the record was erased"
NO_DATUM: Final = "the record is no Avro datum of its schema"
NOT_ONE: Final = "the record is not one Avro datum and nothing else"
NO_RECORD: Final = "the Avro datum is no record"


FindSchema: TypeAlias = Callable[[int], Any]
"""Returns the schema of a number, as JSON has it; raises LookupError where there is none."""


class AvroDecoder:
    """Reads values; goes to the tasks as a whole."""

    def __init__(self, schema: Schema, find_schema: FindSchema | None = None) -> None:
        self.schema = schema
        self._find = find_schema
        self._names = avro_names(schema)
        self._known: dict[int, Any] = {}

    @cached_property
    def _declared(self) -> Any:
        return fastavro.parse_schema(avro_schema(self.schema))

    def decode(self, value: bytes | None) -> dict[str, Any] | str:
        """Return the fields of a value, or what is wrong with it."""
        start, written = 0, self._declared
        if value is None or value.startswith(ERASED):
            return NO_DATUM if value is None else WAS_ERASED
        if self._find is not None:
            if len(value) < HEADER or value[0] != 0:
                return NO_HEADER
            try:
                start, written = HEADER, self._schema_of(int.from_bytes(value[1:HEADER]))
            except LookupError:
                return NO_SCHEMA
        source = io.BytesIO(value)
        source.seek(start)
        try:
            found = fastavro.schemaless_reader(source, written, None)
        except Exception:  # noqa: BLE001 - bytes from outside make decoders fail in many ways
            return NO_DATUM
        if source.tell() != len(value):
            return NOT_ONE
        return self._check(found) if isinstance(found, dict) else NO_RECORD

    def _schema_of(self, number: int) -> Any:
        if number not in self._known and self._find is not None:
            self._known[number] = fastavro.parse_schema(self._find(number))
        return self._known[number]

    def _check(self, found: dict[str, Any]) -> dict[str, Any] | str:
        made = {}
        for name, field in self.schema.items():
            value = found.get(name, found.get(self._names[name]))
            if value is not None:
                value = CHECKS[field.type](value)
                if value is None:
                    return type_reason(name, field.type)
            made[name] = value
        return made


def decode_frame(frame: DataFrame, decoder: AvroDecoder) -> DataFrame:
    """Return the fields of values, with their offsets and arrival, and their problems."""
    numbers = [types.StructField(name, types.LongType()) for name in (OFFSET, MILLISECONDS)]
    made = types.StructType(
        [
            *(types.StructField(name, spark_type(it.type)) for name, it in decoder.schema.items()),
            *numbers,
            types.StructField(PROBLEM, types.StringType()),
        ]
    )

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded()
        return (decode_batch(batch, decoder) for batch in batches)

    return frame.mapInArrow(decode, made)


def decode_batch(batch: pa.RecordBatch, decoder: AvroDecoder) -> pa.RecordBatch:
    """Return the fields of a batch of values."""
    known = batch[PROBLEM].to_pylist() if PROBLEM in batch.schema.names else [None] * len(batch)
    found = [
        problem or decoder.decode(value)
        for problem, value in zip(known, batch[VALUE].to_pylist(), strict=True)
    ]
    rows = [{} if isinstance(item, str) else item for item in found]
    schema = arrow_schema(decoder.schema)
    columns = [pa.array([row.get(it.name) for row in rows], it.type) for it in schema]
    problems = pa.array([item if isinstance(item, str) else None for item in found], pa.string())
    return pa.record_batch(
        [*columns, batch[OFFSET], batch[MILLISECONDS], problems],
        names=[*decoder.schema, OFFSET, MILLISECONDS, PROBLEM],
    )
