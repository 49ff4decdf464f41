"""Rows of tables as JSON values, column by column.

Rules that hold here:
- A cell that is not a value of its field's type goes on as text, so that its record becomes a
  dead letter of each view, with the reason, and is not dropped here.
- Columns that the stream does not have are left out. Bytes that are not UTF-8 are a problem
  of their record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from penstock.model.kinds.streams import StreamField

NO_TEXT: Final = "the record is not text in UTF-8"
_NONE: Final = pa.scalar(None, pa.string())
# What JSON takes for a number or truth value of a type; everything else is written as text.
_PATTERNS: Final = {
    "int": r"^-?(0|[1-9][0-9]*)$",
    "long": r"^-?(0|[1-9][0-9]*)$",
    "float": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
    "double": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$",
    "boolean": r"^(true|false)$",
}


class Values(NamedTuple):
    """Records as JSON, and what is wrong with some: one text or null for each."""

    values: pa.Array
    problems: pa.Array

    def slice(self, start: int, count: int) -> Values:
        """Return some of them."""
        return Values(self.values.slice(start, count), self.problems.slice(start, count))


def sound(values: pa.Array) -> Values:
    """Return values of which none is known to be wrong."""
    return Values(values, pa.nulls(len(values), pa.string()))


def wrong(count: int, problem: str) -> Values:
    """Return records that are wrong for one reason."""
    return Values(pa.nulls(count, pa.binary()), pa.array([problem] * count, pa.string()))


def join(parts: Sequence[Values]) -> Values:
    """Return one behind the other."""
    return Values(
        pa.concat_arrays([part.values for part in parts]),
        pa.concat_arrays([part.problems for part in parts]),
    )


def columns_to_json(
    columns: Mapping[str, pa.Array],
    rows: int,
    fields: Sequence[StreamField],
    *,
    empty_is_null: bool,
) -> Values:
    """Return the rows of columns as JSON objects."""
    parts: list[Any] = []
    broken = None
    for field in fields:
        if field.name in columns:
            text, invalid = _as_text(columns[field.name])
            if invalid is not None:
                broken = invalid if broken is None else pc.or_(broken, invalid)
            lead = "," if parts else "{"
            written = _write(text, field, empty_is_null=empty_is_null)
            parts += [f"{lead}{json.dumps(field.name, ensure_ascii=False)}:", written]
    if not parts:
        return sound(pa.array([b"{}"] * rows, pa.binary()))
    joined = pc.binary_join_element_wise(
        *parts, "}", "", null_handling="replace", null_replacement="null"
    )
    problems = pa.nulls(rows, pa.string())
    if broken is not None:
        problems = pc.if_else(broken, pa.scalar(NO_TEXT), _NONE)
    return Values(pc.cast(joined, pa.binary()), problems)


def records_to_json(records: Sequence[Mapping[str, Any]], fields: Mapping[str, str]) -> Values:
    """Return records as JSON objects; `fields` has our name for each of theirs."""
    made = [
        json.dumps(
            {ours: _plain(record[name]) for name, ours in fields.items() if name in record},
            ensure_ascii=False,
        ).encode(errors="replace")
        for record in records
    ]
    return sound(pa.array(made, pa.binary()))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, date | datetime):
        return value.isoformat()
    return json.dumps(value, default=str)


def _as_text(column: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Return a column as texts, and where its bytes are none."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _read_bytes(column)
    try:
        return pc.cast(column, pa.string()), None
    except pa.ArrowNotImplementedError:
        made = [None if it is None else json.dumps(it, default=str) for it in column.to_pylist()]
        return pa.array(made, pa.string()), None


def _read_bytes(column: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    try:
        return pc.cast(column, pa.string()), None
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    invalid = []
    for item in column.to_pylist():
        try:
            texts.append(None if item is None else item.decode())
            invalid.append(False)
        except UnicodeDecodeError:
            texts.append(None)
            invalid.append(True)
    return pa.array(texts, pa.string()), pa.array(invalid)


def _write(column: pa.Array, field: StreamField, *, empty_is_null: bool) -> pa.Array:
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(column, r"[\x00-\x1f]")).as_py():
        for code in range(32):
            escaped = pc.replace_substring(escaped, chr(code), f"\\u{code:04x}")
    made = pc.binary_join_element_wise('"', escaped, '"', "")
    if field.type in _PATTERNS:
        made = pc.if_else(pc.match_substring_regex(column, _PATTERNS[field.type]), column, made)
    if empty_is_null and (field.optional or field.type != "string"):
        made = pc.if_else(pc.equal(column, ""), _NONE, made)
    return made
