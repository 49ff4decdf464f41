"""The fields of a stream as masks see them: types, checks of values from outside, Avro schemas.

Rules that hold here:
- A value has exactly the type that its field declares, or it is no value. An int may
  stand where a float is declared, if it is exact: JSON writes 37.0 as 37. A bool is
  never a number. Dates are `date`; timestamps are `datetime` with a zone.
- A `float` holds 32 bits, as in Spark: its values are rounded on the way in, so that
  everything after it computes with the same number everywhere.
- Texts of numbers with decimals are never made: their notation differs between Python
  and the JVM. `TEXTS` has the other types.
- Avro's names have letters, digits and _ only. Other characters become _, and a number keeps
  two names apart that would then be one; what a field is called otherwise stands in `doc`. A
  field that may be null is the union of null and its type, in this order.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self, TypeAlias

from penstock.lang.scalars import is_text

MAX_EXACT: Final = 2**53
"""Every int up to here is a double without rounding."""
MAX_FLOAT: Final = float.fromhex("0x1.fffffep+127")
MAX_DOUBLE: Final = float.fromhex("0x1.fffffffffffffp+1023")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SINGLE: Final = struct.Struct("<f")
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class FieldType(StrEnum):
    """What the values of a field are."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"


INTEGERS: Final = frozenset({FieldType.INT, FieldType.LONG})
DECIMALS: Final = frozenset({FieldType.FLOAT, FieldType.DOUBLE})
NUMBERS: Final = INTEGERS | DECIMALS
DATES: Final = frozenset({FieldType.DATE, FieldType.TIMESTAMP})
DISCRETE: Final = frozenset(FieldType) - DECIMALS
"""Types whose values have one notation everywhere, so that they can be hashed."""

LEAST: Final[Mapping[FieldType, int]] = {FieldType.INT: -(2**31), FieldType.LONG: -(2**63)}
MOST: Final[Mapping[FieldType, int]] = {FieldType.INT: 2**31 - 1, FieldType.LONG: 2**63 - 1}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a stream: its type, and whether it may be null."""

    type: FieldType
    optional: bool = False

    @classmethod
    def of(cls, kind: str, *, optional: bool = False) -> Self:
        """Return the field of a type's name, such as `int`."""
        return cls(FieldType(kind), optional)

    def as_type(self, kind: FieldType) -> Field:
        """Return the field with another type."""
        return replace(self, type=kind)


Schema: TypeAlias = Mapping[str, Field]
"""The fields of a record by name, in order."""

Check: TypeAlias = Callable[[Any], Any]
"""Returns the value as masks compute with it, or None where it is not a value of the type."""


def to_single(value: float) -> float:
    """Return the nearest number of 32 bits; infinite beyond the largest."""
    try:
        single: float = _SINGLE.unpack(_SINGLE.pack(value))[0]
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return single


def _as_text(value: Any) -> str | None:
    return value if type(value) is str and is_text(value) else None


def _as_int(value: Any) -> int | None:
    return value if type(value) is int and -(2**31) <= value < 2**31 else None


def _as_long(value: Any) -> int | None:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _as_double(value: Any) -> float | None:
    if type(value) is float:
        return value
    return float(value) if type(value) is int and -MAX_EXACT <= value <= MAX_EXACT else None


def _as_float(value: Any) -> float | None:
    number = _as_double(value)
    if number is None:
        return None
    single = to_single(number)
    # A number never becomes infinite by being rounded.
    return None if math.isinf(single) and not math.isinf(number) else single


def _as_boolean(value: Any) -> bool | None:
    return value if value is True or value is False else None


def _as_date(value: Any) -> date | None:
    return value if type(value) is date else None


def _as_timestamp(value: Any) -> datetime | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    try:
        return value.astimezone(UTC)
    except (OverflowError, ValueError):
        return None


CHECKS: Final[Mapping[FieldType, Check]] = {
    FieldType.STRING: _as_text,
    FieldType.INT: _as_int,
    FieldType.LONG: _as_long,
    FieldType.FLOAT: _as_float,
    FieldType.DOUBLE: _as_double,
    FieldType.BOOLEAN: _as_boolean,
    FieldType.DATE: _as_date,
    FieldType.TIMESTAMP: _as_timestamp,
}


def _boolean_text(value: Any) -> str:
    return "true" if value else "false"


def count_microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


TEXTS: Final[Mapping[FieldType, Callable[[Any], str]]] = {
    FieldType.STRING: str,
    FieldType.INT: str,
    FieldType.LONG: str,
    FieldType.BOOLEAN: _boolean_text,
    FieldType.DATE: date.isoformat,
    FieldType.TIMESTAMP: lambda moment: str(count_microseconds(moment)),
}


def read_text(kind: FieldType, text: str) -> Any:
    """Return the value that a text in a definition stands for, or None where it is none."""
    if kind in INTEGERS:
        return CHECKS[kind](int(text)) if _INTEGER.fullmatch(text) else None
    if kind in DECIMALS:
        return CHECKS[kind](float(text)) if _DECIMAL.fullmatch(text) else None
    if kind is FieldType.DATE:
        return _read_date(text) if _DATE.fullmatch(text) else None
    if kind is FieldType.BOOLEAN:
        return {"true": True, "false": False}.get(text)
    return text if kind is FieldType.STRING and is_text(text) else None


def _read_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def read_constant(kind: FieldType, constant: object) -> Any:
    """Return the value of a type that a constant of a definition stands for, or None.

    Numbers match as numbers: 18, 18.0 and "18" are one int.
    """
    if isinstance(constant, str):
        return read_text(kind, constant)
    if kind in INTEGERS and isinstance(constant, float) and constant.is_integer():
        return CHECKS[kind](int(constant))
    return CHECKS[kind](constant)


AVRO_TYPES: Final[Mapping[FieldType, Any]] = {
    FieldType.STRING: "string",
    FieldType.INT: "int",
    FieldType.LONG: "long",
    FieldType.FLOAT: "float",
    FieldType.DOUBLE: "double",
    FieldType.BOOLEAN: "boolean",
    FieldType.DATE: {"type": "int", "logicalType": "date"},
    FieldType.TIMESTAMP: {"type": "long", "logicalType": "timestamp-micros"},
}


def avro_names(names: Iterable[str]) -> dict[str, str]:
    """Return a name for each field that Avro takes."""
    made: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        plain = f"_{plain}" if plain[:1].isdigit() else plain
        chosen, number = plain, 2
        while chosen in made.values():
            chosen, number = f"{plain}_{number}", number + 1
        made[name] = chosen
    return made


def avro_schema(schema: Schema, title: str = "Record") -> dict[str, Any]:
    """Return the schema of records with these fields."""
    fields = []
    for (name, field), called in zip(schema.items(), avro_names(schema).values(), strict=True):
        kind = AVRO_TYPES[field.type]
        made = {"name": called, "type": ["null", kind] if field.optional else kind}
        fields.append(made if called == name else {**made, "doc": name})
    return {"type": "record", "name": title, "namespace": "penstock", "fields": fields}
