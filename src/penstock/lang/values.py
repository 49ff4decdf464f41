"""Values from outside, and what comes out of an expression.

Rules that hold here:
- A value that is absent, null, of another type than declared, out of range, not
  finite, or not text in Unicode is *missing*. There is one such outcome; it has a
  reason. A reason names paths and types, never a value.
- An int may stand where a double is declared, if the double is exact: JSON writes
  37.0 as 37. A bool is never an int.
- A set stands for the list of its elements in ascending order.
- Values are looked at as deep as their type goes, and no deeper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

from penstock.lang.errors import MAX_EXACT, MAX_INT, MIN_INT, Span
from penstock.lang.scalars import as_duration, as_timestamp, is_text
from penstock.lang.types import (
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    ListOf,
    MapOf,
    RecordType,
    Scalar,
    Type,
)

_LISTS: Final = (list, tuple)
_SETS: Final = (set, frozenset)
_NAMES: Final[Mapping[type, str]] = {
    bool: "bool",
    int: "int",
    float: "double",
    str: "string",
    datetime: "timestamp",
    timedelta: "duration",
}


class MissingError(Exception):
    """Part of an expression has no value; raised and caught by the interpreter only."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.span: Span | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an expression came to: a value, or None with the reason why it is missing."""

    value: Any
    reason: str | None = None
    span: Span | None = None

    @property
    def missing(self) -> bool:
        """Whether there is no value."""
        return self.reason is not None

    @property
    def holds(self) -> bool:
        """Whether the expression came to true: the only outcome that may grant anything."""
        return self.value is True


class TextList(tuple[str, ...]):  # noqa: SLOT001 - a tuple cannot have slots with values
    """A list of strings that was checked once; `members` answers `in` without a search."""

    members: frozenset[str]

    def __new__(cls, texts: Iterable[str]) -> Self:
        """Take strings that are known to be text."""
        made = super().__new__(cls, texts)
        made.members = frozenset(made)
        return made


def conform(value: object, kind: Type) -> Any:
    """Return a value from outside as a value of its declared type, or say why not."""
    if value is None:
        raise MissingError("is missing")
    match kind:
        case ListOf(element=element):
            if isinstance(value, _LISTS):
                return value
            if isinstance(value, _SETS):
                return _sort(value, element)
        case MapOf() | RecordType():
            if isinstance(value, Mapping):
                return value
        case Scalar():
            return _conform_scalar(value, kind)
    raise _wrong(value, kind)


def export(value: Any, kind: Type) -> Any:
    """Return a result as plain data, with None for each part that is missing."""
    match kind:
        case ListOf(element=element):
            return [_export_part(item, element) for item in value]
        case MapOf(value=inner):
            return {
                key: _export_part(item, inner)
                for key, item in value.items()
                if type(key) is str and is_text(key)
            }
        case RecordType(fields=fields):
            return {name: _export_part(value.get(name), inner) for name, inner in fields}
        case _:
            return value


def prepare(value: Any, kind: Type) -> Any:
    """Return an input as plain data that is checked once and then fast to evaluate.

    It means the same as the input. Attributes that many evaluations share are worth it:
    `in` a prepared list of strings takes no longer for a long list than for a short one.
    """
    match kind:
        case ListOf(element=element) if element == STRING:
            texts = _export_part(value, kind)
            return texts if texts is None or None in texts else TextList(texts)
        case RecordType(fields=fields) if isinstance(value, Mapping):
            return {name: prepare(value.get(name), inner) for name, inner in fields}
        case _:
            return _export_part(value, kind)


def _export_part(value: Any, kind: Type) -> Any:
    try:
        return export(conform(value, kind), kind)
    except MissingError:
        return None


def _conform_scalar(value: object, kind: Scalar) -> Any:
    if kind == DOUBLE and type(value) is int:
        if abs(value) > MAX_EXACT:
            raise MissingError("is an int without an exact double")
        return float(value)
    if _NAMES.get(type(value)) != kind.name:
        raise _wrong(value, kind)
    result: object | None = value
    if kind == INT:
        result = value if MIN_INT <= value <= MAX_INT else None  # type: ignore[operator]
    elif kind == DOUBLE:
        result = value if math.isfinite(value) else None  # type: ignore[arg-type]
    elif kind == STRING:
        result = value if is_text(value) else None  # type: ignore[arg-type]
    elif kind == TIMESTAMP:
        result = as_timestamp(value)  # type: ignore[arg-type]
    elif kind == DURATION:
        result = as_duration(value)  # type: ignore[arg-type]
    if result is None:
        raise MissingError(f"is not within the values of {kind}")
    return result


def _sort(values: set[Any] | frozenset[Any], element: Type) -> list[Any]:
    exported = [_export_part(value, element) for value in values]
    known = [value for value in exported if value is not None]
    return sorted(known) + [None] * (len(exported) - len(known))


def _wrong(value: object, kind: Type) -> MissingError:
    if isinstance(value, Mapping):
        found = "a map"
    elif isinstance(value, (*_LISTS, *_SETS)):
        found = "a list"
    else:
        found = _NAMES.get(type(value), "something else")
    return MissingError(f"is declared {kind}, but holds {found}")
